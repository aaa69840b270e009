"""One request to a server, from the first byte sent to the last event, with its times and token counts."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from augury.tools.load.stream import Address, Connection, StreamError, connect


@dataclass(slots=True)
class RequestResult:
    """The outcome of one request; times in seconds."""

    prompt: int  # index in the data set
    start: float
    round: int = 0  # index of its server's turn
    ttft: float = 0.0
    latency: float = 0.0
    itl: list[float] = field(default_factory=list)  # between chunks, not tokens
    input_tokens: int = 0
    output_tokens: int = 0
    told: bool = False  # the server reported the token counts; otherwise chunks are counted
    kind: str = ""  # of the error
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the request completed without an error."""
        return not self.kind

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None if there is only one."""
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


class _Events:
    """Reads the events of one answer as they arrive."""

    def __init__(self, outcome: RequestResult) -> None:
        self.outcome, self.latest = outcome, 0.0
        self.chunks, self.ended = 0, False

    def take(self, now: float, data: bytes) -> None:
        """Process one `data:` line, received at `now`."""
        if data == b"[DONE]":
            self.ended = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            self._wrong("not JSON", f"an event is not JSON: {data[:60].decode(errors='replace')!r}")
            return
        if not isinstance(event, dict):
            self._wrong("not JSON", f"an event is no object: {data[:60].decode(errors='replace')!r}")
        elif event.get("error"):
            self._wrong("error event", _message(event))
        else:
            self._count(now, event)

    def _count(self, now: float, event: dict[str, Any]) -> None:
        outcome = self.outcome
        usage = event.get("usage")
        if isinstance(usage, dict):
            outcome.input_tokens = int(usage.get("prompt_tokens") or 0)
            outcome.output_tokens = int(usage.get("completion_tokens") or 0)
            outcome.told = True
        for choice in event.get("choices") or ():
            if choice.get("finish_reason"):
                self.ended = True
            if _says(choice):
                if not self.chunks:
                    outcome.ttft = now - outcome.start
                else:
                    outcome.itl.append(now - self.latest)
                self.chunks += 1
                self.latest = now
                outcome.latency = now - outcome.start

    def _wrong(self, kind: str, message: str) -> None:
        if not self.outcome.kind:
            self.outcome.kind, self.outcome.error = kind, message


def _says(choice: dict[str, Any]) -> bool:
    """Whether a choice carries tokens; one that decodes to no text yet, as part of a character, counts too."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return bool(choice.get("text")) or bool(choice.get("token_ids"))
    named = ("content", "reasoning_content", "reasoning", "tool_calls")
    return any(delta.get(name) for name in named) or bool(choice.get("token_ids"))


class Client:
    """Sends requests to one server, reusing idle connections."""

    def __init__(self, base: str, path: str, authorization: str | None, timeout: float) -> None:
        self.address, self.path, self.timeout = Address(base, authorization), path, timeout
        self._idle: list[Connection] = []

    async def send(self, prompt: int, body: bytes) -> RequestResult:
        """Send one request; errors are reported in the outcome, not raised."""
        outcome = RequestResult(prompt, time.perf_counter())
        try:
            await asyncio.wait_for(self._sent(outcome, body), self.timeout)
        except TimeoutError:
            outcome.kind, outcome.error = "timeout", f"no end after {self.timeout:g} s"
        except StreamError as error:
            outcome.kind, outcome.error = error.kind, str(error)
        return outcome

    async def _sent(self, outcome: RequestResult, body: bytes) -> None:
        request, events = self.address.post(self.path, body), _Events(outcome)
        connection = await self._connection()
        try:
            try:
                status = await connection.ask(request, events.take)
            except StreamError as error:
                # The server may close a kept connection just as it is reused, which is not a failure; retry once.
                if error.kind != "connection lost" or not connection.used:
                    raise
                connection = await connect(self.address, self.timeout)
                status = await connection.ask(request, events.take)
        finally:
            if connection.open:
                self._idle.append(connection)
        _judge(outcome, events, status, connection.body)

    async def _connection(self) -> Connection:
        """An idle connection that is still open, or a new one."""
        while self._idle:
            if (kept := self._idle.pop()).open:
                return kept
        return await connect(self.address, self.timeout)

    def close(self) -> None:
        """Close every idle connection."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def _judge(outcome: RequestResult, events: _Events, status: int, body: bytes) -> None:
    if outcome.kind:
        return
    if status != 200:
        outcome.kind, outcome.error = f"HTTP {status}", _said(body) or "no explanation"
    elif not events.chunks and body:
        outcome.kind, outcome.error = "no stream", 'the answer came whole: the server ignores "stream": true'
    elif not events.ended:
        outcome.kind, outcome.error = "stream cut", "the stream ended without a finish_reason or [DONE]"
    elif not events.chunks and not outcome.output_tokens:
        outcome.kind, outcome.error = "empty", "the answer holds no token"
    if not events.chunks:  # tokens without text arrived with the last event at the latest
        outcome.latency = outcome.ttft = time.perf_counter() - outcome.start
    if not outcome.told:
        outcome.output_tokens = events.chunks


def _said(body: bytes) -> str:
    """The message of an error response, from its JSON or as text."""
    try:
        return _message(json.loads(body))
    except ValueError:
        return " ".join(body.decode(errors="replace").split())[:200]


def _message(value: Any) -> str:
    inner = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(inner, dict):
        inner = inner.get("message") or inner.get("detail") or inner
    return " ".join(str(inner).split())[:200]
