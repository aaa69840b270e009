"""One replica: the server's application and its engine, called with requests instead of listening for them. No Ray."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from prometheus_client import generate_latest
from starlette.types import ASGIApp, Message

from augury.scale.autoscale import LENGTH, WAITING
from augury.scale.outbox import Outbox
from augury.serve.app import make_app
from augury.serve.opening import opened
from augury.serve.scope import HANG_UP, STALLED
from augury.serve.service import Service, Settings

logger = logging.getLogger("augury")


class Unwell(Exception):
    """The replica cannot answer any more; its supervisor should start another."""


class Replica:
    """An engine and the routes in front of it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.failure: str | None = None
        self._stack = AsyncExitStack()
        self._service: Service | None = None
        self._app: ASGIApp | None = None
        self._lines: asyncio.Task[None] | None = None
        self._length, self._counted = 1.0, (0.0, 0.0)  # mean tokens a step; drafts and accepted tokens so far

    async def open(self) -> None:
        """Start the engine and wait until it is ready; raises EngineFailed."""
        self._service = await self._stack.enter_async_context(opened(self.settings, self._give_up))
        self._app = make_app(self._service)
        if self.settings.log_stats:
            writing = self._service.observatory.log_forever(self.settings.log_stats_interval)
            self._lines = asyncio.create_task(writing)

    async def close(self) -> None:
        """End the engine."""
        if self._lines is not None:
            self._lines.cancel()
        await self._stack.aclose()

    def check(self) -> None:
        """Raise Unwell if the replica must be replaced; an engine that is being restarted recovers by itself."""
        if self.failure is not None:
            raise Unwell(self.failure)

    def figures(self) -> dict[str, float]:
        """The metrics for autoscaling; the length is the mean over the drafts since the previous call."""
        assert self._service is not None
        lines = self._service.observatory.lines
        now = self._count("drafts"), self._count("accepted_tokens")
        drafts, accepted = (new - old for new, old in zip(now, self._counted, strict=True))
        if drafts:
            self._length, self._counted = 1 + accepted / drafts, now
        return {LENGTH: self._length, WAITING: float(lines.waiting), "running": float(lines.running)}

    def _count(self, what: str) -> float:
        assert self._service is not None
        labels = {"model_name": self._service.name, "engine": "0"}
        registry = self._service.observatory.registry
        return registry.get_sample_value(f"vllm:spec_decode_num_{what}_total", labels) or 0.0

    def metrics(self) -> str:
        """Figures for Prometheus."""
        assert self._service is not None
        return generate_latest(self._service.observatory.registry).decode()

    def load(self) -> int:
        """Requests being answered."""
        assert self._service is not None
        return self._service.gate.at_work if self._service.gate else 0

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[list[Message]]:
        """Yield what the application sends for a request, as it comes; each list holds all messages waiting."""
        assert self._app is not None
        left = asyncio.Event()
        sent = Outbox(left.set)
        come: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        del body  # it may be megabytes, and the answer may take minutes

        async def receive() -> Message:
            if come:
                return come.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def run(app: ASGIApp) -> None:
            whole = {**scope, STALLED: sent.age, HANG_UP: left.set}
            try:
                await app(whole, receive, sent.put)
            finally:
                sent.end()

        running = asyncio.create_task(run(self._app))
        try:
            while messages := await sent.take():
                yield messages
            await running  # raises an error of the application to the caller
        finally:  # the client has left, or all is sent
            left.set()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    async def whole(self, scope: dict[str, Any], body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Status, headers and content of a response that is not streamed."""
        status, headers, content = 500, [], b""
        async for messages in self.answer(scope, body):
            for message in messages:
                if message["type"] == "http.response.start":
                    status, headers = message["status"], list(message["headers"])
                else:
                    content += message.get("body", b"")
        return status, headers, content

    def _give_up(self, why: str) -> None:
        self.failure = self.failure or why
        logger.error("%s", why)
