"""The checks before every route: keys, sizes, slow senders, too many requests, a server that is shutting down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

from augury.serve.bodies import Bodies, Body
from augury.serve.errors import ApiError
from augury.serve.identity import Identity
from augury.serve.keys import Keys
from augury.serve.messages.errors import error_response
from augury.serve.scope import BODY, CLIENT
from augury.serve.shares import Shares
from augury.serve.stream import ClientLeft

WORK = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
ADAPTERS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
WITH_BODY = (
    *WORK,
    *ADAPTERS,
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/augury/drafter",
)  # no other body is read
ALL_BODIES = 4  # bodies of the largest size that may be in memory at a time


@dataclass(slots=True)
class Limits:
    """What the command line allows."""

    api_keys: list[str] = field(default_factory=list)
    concurrent: int = 1024  # requests for answers at a time
    request_bytes: int = 16 << 20
    read_seconds: float = 30.0  # for a client to send its request
    loopback: bool = False  # only this machine can reach the server by an address
    hosts: list[str] = field(default_factory=list)  # further host names that are allowed when it has no keys
    write_seconds: float = 30.0  # for a client to take something of its answer
    share: bool = False  # keys use each other's caches

    @property
    def num_keys(self) -> int:
        """The number of different keys, which share the places; without keys all clients count as one."""
        return max(1, len(set(self.api_keys)))

    def identity(self) -> Identity:
        """What tells its clients apart."""
        return Identity(Keys(self.api_keys, self.share), self.loopback, self.hosts)


class Gate:
    """Admits requests or refuses them with a reason, and counts those being answered."""

    def __init__(self, app: ASGIApp, limits: Limits, refused: Callable[[str], None]) -> None:
        self.app = app
        self.limits = limits
        self.leaving = False
        self._at_work: Counter[str] = Counter()  # by key
        self._shares = Shares(limits.concurrent, limits.num_keys)
        self.bodies = Bodies(limits.request_bytes, ALL_BODIES * limits.request_bytes, limits.read_seconds)
        self._refused = refused
        self._identity = limits.identity()

    @property
    def at_work(self) -> int:
        """Requests that are being answered."""
        return self._at_work.total()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        work = scope["path"] in WORK and scope["method"] == "POST"
        body: Body | None = None
        try:
            self._admit(scope, work)
            self._at_work[scope[CLIENT]] += work
            try:
                if scope["path"] in WITH_BODY and scope["method"] == "POST":
                    body = scope[BODY] = await self.bodies.read(receive)
                await self.app(scope, body.receive if body else receive, send)
            finally:
                self._at_work[scope[CLIENT]] -= work
                if body is not None:
                    body.release()
        except ApiError as error:
            await error_response(error, scope["path"])(scope, receive, send)
        except ClientLeft:
            return

    def _admit(self, scope: Scope, work: bool) -> None:
        headers = dict(scope["headers"])
        self._identity.note(scope, headers)
        if self.leaving and work:
            raise ApiError(503, "the server is shutting down.", code="shutting_down")
        if work and not self._shares.fit(self._at_work, scope[CLIENT], 1):
            self._refused("concurrency")
            raise ApiError(429, self._shares.why(self._at_work, scope[CLIENT], 1, "requests are being answered"))
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self.limits.request_bytes:
            raise self.bodies.too_large()
