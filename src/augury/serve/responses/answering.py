"""A response of the Responses API, streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from augury.serve.answers import Answers
from augury.serve.chat import ChatShape
from augury.serve.errors import ApiError
from augury.serve.parsers.events import REASONING
from augury.serve.parsers.reader import Chain
from augury.serve.responses.echo import written, written_items
from augury.serve.responses.items import Told, Writer, new_id
from augury.serve.responses.request import ResponsesRequest
from augury.serve.speech import Speech
from augury.serve.writing import LARGE

Keep = Callable[[str, bytes, bytes], None]


class Asked(NamedTuple):
    """The request that a response answers, and what it continues from."""

    request: ResponsesRequest
    before: list[dict[str, Any]]  # items of the conversation that it continues
    size: int  # about how many bytes are repeated or kept


class ResponseAnswers(Answers):
    """The one answer to a request, as output items."""

    def attend(self, asked: Asked, keep: Keep, count: Any) -> None:
        """Set what was asked, the function that keeps the response, and the one that counts a text's tokens."""
        self.asked, self._before, self._repeated = asked
        self._keep, self._tokens_of = keep, count
        self.head["id"] = new_id("resp")
        assert isinstance(self.shape, ChatShape)
        self._speech = self.shape.speech(0) or Speech(Chain([]))
        self._writer, self._number = Writer(), 0
        self._reasoning: list[str] = []

    def _body(self) -> bytes:
        answer = self.answers[0]
        for _ in self._told(answer.text, answer.end):
            pass
        self._written = len(answer.tokens)
        return self._kept(self._finished(answer.end))

    async def events(self) -> AsyncIterator[dict[str, Any] | str | bytes]:
        """The events of a stream."""
        assert self.batch is not None
        updates = self.client.updates(self.batch)
        try:
            for name in ("response.created", "response.in_progress"):
                begun = self._numbered({"type": name, "response": self._response("in_progress")})
                yield await asyncio.to_thread(_event, begun) if self._repeated > LARGE else _event(begun)
            async for _, update in updates:
                self._count(update)
                self.answers[0].note(update)
                for told in self._told(update["text"], update.get("end")):
                    yield self._numbered(told)
            end = self.answers[0].end
            yield await asyncio.to_thread(self._last, end)
        except ApiError as error:
            body = error.body()["error"]
            told = {"type": "error", "code": str(body["code"]), "message": body["message"], "param": body["param"]}
            yield self._numbered(told)
        finally:
            await updates.aclose()  # type: ignore[attr-defined]

    def _told(self, text: str, end: dict[str, Any] | None) -> list[Told]:
        """The API's events for more text."""
        found: list[Told] = []
        for event, _ in self._speech.take(text, bool(end)):
            if event.kind == REASONING:
                self._reasoning.append(event.text)
            found += self._writer.write(event)
        if end:
            found += self._writer.close(end["reason"] not in ("length", "error"))
        return found

    def _numbered(self, told: Told) -> Told:
        self._number += 1
        return {**told, "sequence_number": self._number - 1}

    def _finished(self, end: dict[str, Any]) -> dict[str, Any]:
        cut, failed = end["reason"] == "length", end["reason"] == "error"
        response = self._response("incomplete" if cut else "failed" if failed else "completed")
        response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        response["error"] = {"code": "server_error", "message": str(end["stop"])} if failed else None
        response["output"], used = self._writer.items, self.usage()
        thought = self._tokens_of("".join(self._reasoning)) if self._reasoning else 0
        response["usage"] = {
            "input_tokens": used["prompt_tokens"],
            "input_tokens_details": used["prompt_tokens_details"],
            "output_tokens": used["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": min(thought, used["completion_tokens"])},
            "total_tokens": used["total_tokens"],
        }
        return response | self._figures()

    def _kept(self, response: dict[str, Any]) -> bytes:
        """A response as JSON; it is also kept, unless `store` is false."""
        told = written(response)
        if self.asked.store is not False:
            items = [*self._before, *self.asked.items(), *self._writer.items]
            self._keep(response["id"], told, written_items(items))
        return told

    def _last(self, end: dict[str, Any]) -> bytes:
        """The event that ends a stream."""
        response = self._finished(end)
        self._kept(response)
        return _event(self._numbered({"type": f"response.{response['status']}", "response": response}))

    def _response(self, status: str) -> dict[str, Any]:
        asked = self.asked
        return {
            "id": self.head["id"],
            "object": "response",
            "created_at": self.head["created"],
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self.head["model"],
            "output": [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": asked.previous_response_id,
            "reasoning": asked.reasoning or {"effort": None, "summary": None},
            "store": asked.store is not False,
            "temperature": self.params.get("temperature", 1.0),
            "text": asked.text or {"format": {"type": "text"}},
            "tool_choice": asked.tool_choice or "auto",
            "tools": asked.tools or [],
            "top_p": self.params.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": None,
        }


def _event(told: Told) -> bytes:
    """The bytes of an event that carries a whole response, which may be long."""
    return f"event: {told['type']}\ndata: ".encode() + written(told) + b"\n\n"
