"""What completions and chats share on the way from the engine's updates to the client."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from fastapi.responses import Response

from augury.serve.costs import SCORES, check_parameters, prompt_scores
from augury.serve.engine_client import EngineClient
from augury.serve.errors import ApiError
from augury.serve.jobs import Batch, Refused
from augury.serve.openai import Generation
from augury.serve.scores import Entry, prompt_logprobs
from augury.serve.wire import Message
from augury.serve.writing import LARGE, Known, pieces, respond


@dataclass(slots=True)
class Answer:
    """One choice, as it grows."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Entry] = field(default_factory=list)
    prompt_logprobs: list[Entry | None] | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    cached: int = 0
    end: dict[str, Any] = field(default_factory=dict)

    def note(self, update: Message) -> None:
        """Keep an update's final facts only: in a stream, what has been sent need not be kept."""
        self.cached = update.get("cached", self.cached)
        self.end = update.get("end", self.end)

    def add(self, update: Message) -> None:
        """Add all of a step's output."""
        self.note(update)
        self.text += update["text"]
        self.tokens += update["tokens"]
        self.logprobs += update.get("logprobs", ())
        self.prompt_logprobs = update.get("prompt_logprobs", self.prompt_logprobs)
        if "trace" in update:
            self.steps.append(update["trace"])


class ResponseFormat(Protocol):
    """How one kind of response is written."""

    object: str
    chunk_object: str
    empty: ClassVar[dict[str, Any]]  # a delta that adds nothing

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """A finished choice."""
        ...

    def opening(self, index: int) -> dict[str, Any] | None:
        """What a choice's stream begins with, before any token."""
        ...

    def ahead(self, index: int, update: Message) -> list[dict[str, Any]]:
        """What a step added that goes out in chunks of its own, before `delta`."""
        ...

    def delta(self, index: int, answer: Answer, update: Message) -> dict[str, Any] | None:
        """What a step added to a choice; None when there is nothing to show yet."""
        ...


class Answers:
    """One HTTP request's answers."""

    def __init__(
        self,
        request: Generation,
        client: EngineClient,
        prompts: list[list[int]],
        params: dict[str, Any],
        shape: ResponseFormat,
        prefix: str,
        model: str,
        metrics: str,
    ) -> None:
        self.request, self.client, self.prompts, self.params = request, client, prompts, params
        self.shape, self.metrics = shape, metrics
        self.n: int = params.get("n", 1)
        self.answers = [Answer() for _ in range(len(prompts) * self.n)]
        self.head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self.batch: Batch | None = None
        self._read = sum(map(len, prompts))
        self._written = self._cached = 0  # tokens so far
        self._scores = 0  # log-probabilities held
        self._repeated = 0  # bytes of the request that the response repeats, or that are kept with it
        self._known: Known = {}  # prompt scores that are already written as JSON
        self._asked = int(params.get("prompt_logprobs") or 0) + 1  # log-probabilities of each prompt token, if any

    async def begin(self) -> None:
        """Hand the prompts to the engine, which may refuse them."""
        asked = "logprobs" if self.request.prompt_logprobs is None else "prompt_logprobs"  # an echo has them, too
        check_parameters(self.params, len(self.prompts))
        self._hold(prompt_scores(self.prompts, self.n, self.params, asked))
        try:
            detailed = self.metrics == "detailed"
            self.batch = await self.client.submit(self.prompts, self.params, self.n, detailed, self.request.client)
        except Refused as refusal:
            raise self.request.refusal(str(refusal)) from None

    def in_the_way(self) -> bool:
        """Whether the engine still works on this request while others wait for a slot."""
        return self.batch is not None and self.client.in_the_way(self.batch)

    def drop(self) -> None:
        """Abort what the engine still does for this request, if anything, and release its log-probabilities."""
        if self.batch is not None:
            self.client.abort(self.batch)
        self.client.scores.give(self._scores, self.request.client)
        self._scores = 0

    def _hold(self, scores: int) -> None:
        self.client.scores.take(scores, self.request.client)
        self._scores += scores

    async def whole(self) -> Response:
        """The response of a request that does not stream."""
        try:
            await self.begin()
            await self._gather()
            return await respond(self._body, self._written + self._scores + self._repeated)
        finally:
            self.drop()

    async def _gather(self) -> None:
        """Wait until all answers are there."""
        assert self.batch is not None
        scored = 0
        async for index, update in self.client.updates(self.batch):
            fresh = sum(map(len, update.get("logprobs", ())))
            scored += fresh
            if scored > SCORES:
                why = f"logprobs: the answers have more than {SCORES} of them; stream them, or ask for fewer."
                raise ApiError(400, why, "logprobs")
            self._hold(fresh)
            self._count(update)
            self.answers[index].add(update)

    def _count(self, update: Message) -> None:
        self._written += len(update["tokens"])
        if update["index"] == 0:  # a prompt with n answers is read once
            self._cached += update.get("cached", 0)

    def _body(self) -> dict[str, Any] | bytes:
        choices = [self._choice(index, answer) for index, answer in enumerate(self.answers)]
        self._written = sum(len(answer.tokens) for answer in self.answers)  # an echo alone has none
        response = {**self.head, "object": self.shape.object, "choices": choices, "usage": self.usage()}
        first = self.answers[0]
        if len(self.answers) == 1 and first.steps:
            response["augury"] = {"steps": first.steps}
        if self.request.prompt_logprobs is not None and first.prompt_logprobs is not None:
            known = choices[0].get("prompt_logprobs")
            response["prompt_logprobs"] = prompt_logprobs(first.prompt_logprobs) if known is None else known
        if self.request.return_token_ids and len(self.prompts) == 1:
            response["prompt_token_ids"] = self.prompts[0]
        return {**response, **self._figures()}

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        choice = self.shape.choice(index, answer)
        if self.request.return_token_ids:
            choice["token_ids"] = answer.tokens
            choice["prompt_token_ids"] = self.prompts[index // self.n]
        return {**choice, "finish_reason": answer.end["reason"], "stop_reason": answer.end["stop"]}

    async def events(self) -> AsyncIterator[dict[str, Any] | str | bytes]:
        """The chunks of a stream, once the engine has taken the prompts."""
        assert self.batch is not None
        updates = self.client.updates(self.batch)
        try:
            for index in range(len(self.answers)):
                if (opening := self.shape.opening(index)) is not None:
                    yield self._chunk([{"index": index, **opening, "finish_reason": None}])
            async for index, update in updates:
                for ahead in self.shape.ahead(index, update):
                    yield self._chunk([{"index": index, **ahead, "finish_reason": None}])
                large = len(update.get("prompt_logprobs") or ()) * self._asked > LARGE
                write = asyncio.to_thread(self._written_delta, index, update) if large else None
                if (chunk := self._delta(index, update) if write is None else await write) is not None:
                    yield chunk
            if self.request.wants_usage:
                yield {**self._chunk([]), "usage": self.usage(), **self._figures()}
        finally:
            await updates.aclose()  # type: ignore[attr-defined]

    def _written_delta(self, index: int, update: Message) -> str | None:
        """`_delta` as JSON text, for an update with a long prompt's scores."""
        chunk = self._delta(index, update)
        return None if chunk is None else "".join(pieces(chunk, self._known))

    def _delta(self, index: int, update: Message) -> dict[str, Any] | None:
        answer = self.answers[index]
        delta = self.shape.delta(index, answer, update)
        self._count(update)
        answer.note(update)
        if delta is None and "trace" not in update and not self.request.return_token_ids:
            return None  # half a character, say; clients that want ids get them as they come
        choice = {"index": index, **(delta or self.shape.empty), "finish_reason": None}
        if answer.end:
            choice |= {"finish_reason": answer.end["reason"], "stop_reason": answer.end["stop"]}
        if self.request.return_token_ids:
            choice["token_ids"] = update["tokens"]
        chunk = self._chunk([choice])
        if "trace" in update:
            chunk["augury"] = {"steps": [update["trace"]]}
        return chunk

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self.head, "object": self.shape.chunk_object, "choices": choices}
        options = self.request.stream_options
        if options is not None and options.continuous_usage_stats:
            chunk["usage"] = self.usage()
        elif self.request.wants_usage:
            chunk["usage"] = None
        return chunk

    def usage(self) -> dict[str, Any]:
        """Tokens in and out; counted as they come, since every chunk may report them."""
        usage: dict[str, Any] = {
            "prompt_tokens": self._read,
            "completion_tokens": self._written,
            "total_tokens": self._read + self._written,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }
        if self.request.prediction is not None:  # known of an answer when it has ended
            found = [end for answer in self.answers if (end := answer.end.get("prediction"))]
            usage["completion_tokens_details"] = {
                "accepted_prediction_tokens": sum(accepted for accepted, _ in found),
                "rejected_prediction_tokens": sum(rejected for _, rejected in found),
            }
        return usage

    def _figures(self) -> dict[str, Any]:
        """Speculation metrics and what a connector has saved, if there is a single answer to report them for."""
        if len(self.answers) != 1 or not self.answers[0].end:
            return {}
        end = self.answers[0].end
        figures: dict[str, Any] = {}
        if self.metrics != "none":
            figures["metrics"] = {"speculative_decoding": end["speculative_decoding"]}
        if end["kv_transfer_params"] is not None:
            figures["kv_transfer_params"] = end["kv_transfer_params"]
        return figures
