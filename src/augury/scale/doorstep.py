"""Middleware for Ray's own proxy, before the ingress: clients that do not read are cut off, request ids are bounded.

Ray forwards all that a replica sends without waiting for the client, so nothing behind its proxy can notice a client
that reads nothing. In the proxy it shows as in any server: by what the connection's write buffer still holds.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from augury.serve.connection import PROGRESS

SECONDS = 30.0  # the default of --write-timeout
ENVIRONMENT = "AUGURY_WRITE_TIMEOUT"
CALLBACK = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "augury.scale.doorstep.middlewares"}
REQUEST_ID = b"x-request-id"  # which Ray repeats in the response
NAME = re.compile(rb"[\w.:-]{1,128}")


def middlewares() -> list[Middleware]:
    """What Ray's proxy calls if its environment has CALLBACK; a cluster that we did not start needs that set."""
    return [Middleware(Doorstep, write_seconds=float(os.environ.get(ENVIRONMENT, SECONDS)))]


class Doorstep:
    """ASGI middleware around the proxy's application."""

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
    """Hangs up on a client that takes too little of a full buffer; the server then treats it as disconnected."""

    def __init__(self, send: Send, transport: Any, seconds: float) -> None:
        self._send, self._transport, self._seconds = send, transport, seconds
        self._clock: asyncio.TimerHandle | None = None

    async def send(self, message: Message) -> None:
        """Send a message; the connection is aborted if the client keeps it waiting too long."""
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
