"""What stands before every route: keys, sizes, slow senders, too many at once, a server that is leaving."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from augury.serve.errors import ApiError
from augury.serve.stream import ClientLeft
from augury.serve.visitors import check_visitor

GUARDED = ("/v1/", "/tokenize", "/detokenize")  # as in vLLM, figures and health need no key
WORK = ("/v1/completions", "/v1/chat/completions")


@dataclass(slots=True)
class Limits:
    """What the command line allows."""

    api_keys: list[str] = field(default_factory=list)
    concurrent: int = 1024  # requests for answers at a time
    request_bytes: int = 16 << 20
    read_seconds: float = 30.0  # for a client to send its request
    loopback: bool = False  # only this machine can reach the server by an address
    hosts: list[str] = field(default_factory=list)  # names it goes by besides, when it has no keys


class Gate:
    """Lets requests in, or says why not; counts those at work."""

    def __init__(self, app: ASGIApp, limits: Limits, refused: Callable[[str], None]) -> None:
        self.app = app
        self.limits = limits
        self.leaving = False
        self.at_work = 0
        self._refused = refused
        self._keys = [hashlib.sha256(key.encode()).digest() for key in limits.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        work = scope["path"] in WORK and scope["method"] == "POST"
        try:
            self._admit(scope, work)
            self.at_work += work
            try:
                if scope["method"] == "POST":
                    receive = await self._read(scope, receive)
                await self.app(scope, receive, send)
            finally:
                self.at_work -= work
        except ApiError as error:
            await error.response()(scope, receive, send)
        except ClientLeft:
            return

    def _admit(self, scope: Scope, work: bool) -> None:
        headers = dict(scope["headers"])
        if not self._keys:
            check_visitor(headers, self.limits.loopback, self.limits.hosts)
        if self._keys and scope["path"].startswith(GUARDED) and not self._knows(headers.get(b"authorization", b"")):
            raise ApiError(401, "a valid API key is needed: Authorization: Bearer KEY.", code="invalid_api_key")
        if self.leaving and work:
            raise ApiError(503, "the server is shutting down.", code="shutting_down")
        if work and self.at_work >= self.limits.concurrent:
            self._refused("concurrency")
            raise ApiError(429, f"{self.at_work} requests are being answered, which is the limit; try again.")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self.limits.request_bytes:
            raise self._too_large()

    def _knows(self, header: bytes) -> bool:
        """Whether a header names one of our keys; all are compared, each in constant time."""
        kind, _, key = header.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        same = [hmac.compare_digest(digest, known) for known in self._keys]
        return any(same) and kind.lower() == b"bearer"

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the request is larger than {self.limits.request_bytes} bytes.", code="request_too_large")

    async def _read(self, scope: Scope, receive: Receive) -> Receive:
        """Take the whole body, within its limits, and give a `receive` that hands it on."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft
                    body += message.get("body", b"")
                    if len(body) > self.limits.request_bytes:
                        raise self._too_large()
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise ApiError(408, f"the request did not come within {self.limits.read_seconds:g} seconds.") from None
        given = False

        async def again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return again
