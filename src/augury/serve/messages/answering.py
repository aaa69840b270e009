"""An answer of the Messages API, streamed or whole."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

from augury.serve.answers import Answers
from augury.serve.chat import ChatShape
from augury.serve.errors import ApiError
from augury.serve.messages.blocks import BlockWriter, Told
from augury.serve.messages.errors import error_body
from augury.serve.parsers.reader import Chain
from augury.serve.speech import Speech


class MessageAnswers(Answers):
    """The one answer to a request, as content blocks."""

    def attend(self) -> None:
        """Make ready to write blocks."""
        assert isinstance(self.shape, ChatShape)
        self.name = f"msg_{uuid.uuid4().hex[:24]}"
        self._speech = self.shape.speech(0) or Speech(Chain([]))
        self._writer = BlockWriter()

    def _body(self) -> dict[str, Any]:
        answer = self.answers[0]
        for _ in self._told(answer.text, answer.end):
            pass
        self._written = len(answer.tokens)
        return {**self._message(), **self._ending(answer.end), **self._figures()}

    async def events(self) -> AsyncIterator[dict[str, Any] | str | bytes]:
        """The events of a stream."""
        assert self.batch is not None
        updates, begun = self.client.updates(self.batch), False
        try:
            async for _, update in updates:
                self._count(update)
                self.answers[0].note(update)
                if not begun:  # by now it is known what was in the cache
                    begun = True
                    yield {"type": "message_start", "message": {**self._message(), "usage": self._used(0)}}
                for told in self._told(update["text"], update.get("end")):
                    yield told
            ending = self._ending(self.answers[0].end)
            used = self._used(self._written)
            yield {"type": "message_delta", "delta": ending, "usage": used, **self._figures()}
            yield {"type": "message_stop"}
        except ApiError as error:
            yield error_body(error)
        finally:
            await updates.aclose()  # type: ignore[attr-defined]

    def _told(self, text: str, end: dict[str, Any] | None) -> list[Told]:
        """The API's events for more text."""
        found: list[Told] = []
        for event, _ in self._speech.take(text, bool(end)):
            found += self._writer.write(event)
        if end:
            found += self._writer.close()
        return found

    def _message(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "type": "message",
            "role": "assistant",
            "model": self.head["model"],
            "content": self._writer.blocks,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._used(self._written),
        }

    def _ending(self, end: dict[str, Any]) -> dict[str, Any]:
        """Why it ended: a stop sequence of the client's, a call, the limit, or by itself."""
        if end["reason"] == "error":
            raise ApiError(500, f"the answer could not be finished: {end['stop']}")
        stop = end["stop"] if isinstance(end["stop"], str) and end["reason"] == "stop" else None
        if end["reason"] == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        reason = "tool_use" if self._speech.calls else "end_turn" if stop is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": stop if reason == "stop_sequence" else None}

    def _used(self, written: int) -> dict[str, Any]:
        """Tokens in and out; what was in the cache is not part of the input, as Anthropic counts."""
        used = self.usage()
        cached = used["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": used["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": written,
        }
