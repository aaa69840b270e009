"""What runs in Ray's own proxy, before the door: readers who do not read are cut off, and request ids are bounded.

Ray passes on all that a replica says without waiting for the client, so that nothing behind its proxy can notice one
that reads nothing. In the proxy it is seen as a server sees it: by what the connection's buffer still holds.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from augury.serve.connection import PROGRESS

SECONDS = 30.0  # as --write-timeout has it
ENVIRONMENT = "AUGURY_WRITE_TIMEOUT"
CALLBACK = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "augury.scale.doorstep.middlewares"}
REQUEST_ID = b"x-request-id"  # which Ray repeats in the answer
NAME = re.compile(rb"[\w.:-]{1,128}")


def middlewares() -> list[Middleware]:
    """What Ray's proxy calls where its environment has CALLBACK; a cluster that is not ours must be told so."""
    return [Middleware(Doorstep, write_seconds=float(os.environ.get(ENVIRONMENT, SECONDS)))]


class Doorstep:
    """An ASGI application around the proxy's."""

    def __init__(self, app: ASGIApp, write_seconds: float = SECONDS) -> None:
        self._app, self._seconds = app, write_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        transport = getattr(getattr(send, "__self__", None), "transport", None)
        if transport is not None:
            send = _Watched(send, transport, self._seconds).send
        headers = [(name, value) for name, value in scope["headers"] if name != REQUEST_ID or NAME.fullmatch(value)]
        await self._app({**scope, "headers": headers}, receive, send)


class _Watched:
    """Hangs up where a client takes too little of a full buffer; the server then tells everyone that it has left."""

    def __init__(self, send: Send, transport: Any, seconds: float) -> None:
        self._send, self._transport, self._seconds = send, transport, seconds
        self._clock: asyncio.TimerHandle | None = None

    async def send(self, message: Message) -> None:
        """Send a message; who waits for the client longer than it may is let go."""
        self._watch()
        try:
            await self._send(message)
        finally:
            if self._clock is not None:
                self._clock.cancel()

    def _watch(self) -> None:
        left = self._transport.get_write_buffer_size()
        self._clock = asyncio.get_running_loop().call_later(self._seconds, self._look, left)

    def _look(self, before: int) -> None:
        if before - self._transport.get_write_buffer_size() >= PROGRESS:
            self._watch()
        else:
            self._transport.abort()
