"""The ingress of a fleet: reads a request, chooses its replica, forwards what that sends. An ASGI app, no Ray."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from augury.scale.asked import Asked, read_asked
from augury.scale.counts import RouterCounts
from augury.scale.fleet import Fleet, ReplicaLost
from augury.scale.keepers import Keepers
from augury.scale.merged_metrics import merged
from augury.scale.router import NoReplicas, Router
from augury.serve.bodies import Bodies, Body
from augury.serve.errors import ApiError
from augury.serve.limits import ADAPTERS, ALL_BODIES, WITH_BODY, WORK, Limits
from augury.serve.messages.errors import error_body, error_response, is_theirs
from augury.serve.scope import CLIENT, TENANT
from augury.serve.stream import ClientLeft, gone

logger = logging.getLogger("augury")
FOR_ALL = (*ADAPTERS, "/augury/drafter", "/augury/drafter/undo")  # sent to every replica
PASSED = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers", "client", "server")
AGAIN = 16  # bodies of the largest size that may be kept for retries; a request that finds no room is not retried
RESPONSES = "/v1/responses"
RESPONSE = re.compile(rb'"id": ?"(resp_[\w-]+)"')  # of a response of /v1/responses, which its replica keeps
LOST = "the replica that worked on this request has died; send the request again to have another replica answer it."


@dataclass(slots=True)
class _Request:
    """A request on its way to a replica; its body is kept as long as it may be retried."""

    scope: dict[str, Any]  # the scope that a replica gets
    body: bytes
    client: str
    asked: Asked
    kept: int = 0  # bytes of the body that are counted as kept for a retry
    again: bool = True  # whether it may be retried


class Ingress:
    """Routes requests by their prefix; a request whose replica dies before any output is sent to another."""

    def __init__(self, fleet: Fleet, limits: Limits, router: Router | None = None, sticky: bool = True) -> None:
        self.fleet, self.limits, self.sticky = fleet, limits, sticky
        self.router = router or Router()
        self.counts = RouterCounts()
        self.at_work: Counter[str] = Counter()  # running requests by replica
        self._identity = limits.identity()
        self._bodies = Bodies(limits.request_bytes, ALL_BODIES * limits.request_bytes, limits.read_seconds)
        self._kept = 0  # bytes of bodies that are kept for retries
        self._keepers = Keepers(limits.num_keys)
        self._known: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        try:
            await self._serve(scope, receive, send)
        except ApiError as error:
            await error_response(error, scope["path"])(scope, receive, send)
        except NoReplicas:
            nobody = ApiError(503, "no replica is ready; try again in a moment.", code="no_replica")
            await error_response(nobody, scope["path"])(scope, receive, send)
        except ClientLeft:
            return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, posted = scope["path"], scope["method"] == "POST"
        self._identity.note(scope, dict(scope["headers"]))  # before any untrusted input is read
        if path == "/metrics" and not posted:
            await (await self._metrics())(scope, receive, send)
            return
        if path == "/load" and not posted:
            loads = await self.fleet.everywhere("load")
            await JSONResponse({"server_load": sum(loads.values())})(scope, receive, send)
            return
        held = await self._bodies.read(receive) if posted and path in WITH_BODY else None
        try:
            request = await self._read(scope, held)
            if path in FOR_ALL and scope["method"] in ("POST", "PUT", "DELETE"):
                await (await self._everywhere(request))(scope, receive, send)
                return
        finally:
            if held is not None:
                held.release()
        await self._while_there(self._relay(request, send), receive)

    async def _read(self, scope: Scope, held: Body | None) -> _Request:
        body = bytes((await held.receive())["body"]) if held is not None else b""
        plain = {name: scope[name] for name in PASSED if name in scope}
        path = scope["path"]
        routed = path in WORK and (self.sticky or path == RESPONSES)
        asked = await read_asked(body, scope[TENANT]) if body and routed else Asked()
        return _Request(plain, body, scope[CLIENT], asked if self.sticky else asked._replace(prefix=None))

    async def _while_there(self, work: Coroutine[Any, Any, None], receive: Receive) -> None:
        relaying = asyncio.create_task(work)
        leaving = asyncio.create_task(gone(receive))
        try:
            await asyncio.wait({relaying, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if relaying.done():
                relaying.result()
        finally:
            for task in (relaying, leaving):
                task.cancel()
            await asyncio.gather(relaying, leaving, return_exceptions=True)

    # --- one replica ------------------------------------------------------------------------------------------------

    async def _relay(self, request: _Request, send: Send) -> None:
        """Forward a request to its replica, and to one other if that dies before any of the answer is sent."""
        tried: set[str] = set()
        path = request.scope["path"]
        try:
            while True:
                name = self._choose(request, tried)
                tried.add(name)
                sender = _Sender(send, path, self.limits.write_seconds)
                self.at_work[name] += 1
                try:
                    await self._pass_on(name, request, sender)
                    return
                except ReplicaLost as error:
                    logger.warning("%s: replica %s was lost: %s", path, name, error)
                    self.counts.lost(name)
                    self._drop(name)
                    if sender.begun or len(tried) > 1 or not request.again:
                        await sender.fail()
                        return
                finally:
                    self.at_work[name] -= 1
        finally:
            self._let_go(request)

    async def _pass_on(self, name: str, request: _Request, sender: _Sender) -> None:
        looking = request.scope["path"] == RESPONSES
        messages = self.fleet.answer(name, request.scope, self._keep(request))
        try:
            async for some in messages:
                for message in some:
                    if looking and (found := RESPONSE.search(message.get("body", b""))):
                        looking = False
                        self._keepers.note(request.client, found.group(1).decode(), name)
                    await sender.send(message)
                if sender.begun:
                    self._let_go(request)
        finally:
            await messages.aclose()  # type: ignore[attr-defined]

    def _choose(self, request: _Request, tried: set[str]) -> str:
        names, path, prefix = self.fleet.names(), request.scope["path"], request.asked.prefix
        for gone_ in self._known - set(names):
            self._drop(gone_)
        self._known = set(names)
        loads = {name: self.at_work[name] for name in names if name not in tried}
        if not loads:
            raise NoReplicas
        if (keeper := self._keepers.of(request.client, path, request.asked.earlier)) in loads:
            return str(keeper)
        if path not in WORK:  # the page and its figures come from one replica as long as it lives
            return self.router.home(b"\0" * 8, loads)
        choice = self.router.choose(prefix, loads)
        self.counts.chosen(choice, len(prefix.blocks) if prefix else 0)
        return choice.replica

    def _drop(self, name: str) -> None:
        self.router.forget(name)
        self._known.discard(name)

    # --- bodies that can be sent again --------------------------------------------------------------------------------

    def _keep(self, request: _Request) -> bytes:
        """The body to send; it is also kept for a retry, if there is room among the bodies that are."""
        body = request.body
        if not request.kept and self._kept + len(body) <= AGAIN * self.limits.request_bytes:
            request.kept = len(body)
            self._kept += len(body)
        elif not request.kept:
            request.body, request.again = b"", False
        return body

    def _let_go(self, request: _Request) -> None:
        self._kept -= request.kept
        request.kept, request.body = 0, b""

    # --- all replicas -------------------------------------------------------------------------------------------------

    async def _metrics(self) -> Response:
        pages = await self.fleet.everywhere("metrics")
        return PlainTextResponse(merged(pages) + self.counts.page(), media_type="text/plain; version=0.0.4")

    async def _everywhere(self, request: _Request) -> Response:
        """Call every replica and return the answer with the highest status: what one refuses must not look done."""
        answers = await self.fleet.everywhere("whole", request.scope, request.body)
        if not answers:
            raise NoReplicas
        status, headers, content = max(answers.values(), key=lambda answer: int(answer[0]))
        response = Response(content, status)
        response.raw_headers = headers
        return response


class _Sender:
    """Holds back the start of a response until its first body part, so that another replica can still answer."""

    def __init__(self, send: Send, path: str, seconds: float) -> None:
        self._inner, self._path, self._seconds = send, path, seconds
        self._start: Message | None = None
        self.begun = False

    async def send(self, message: Message) -> None:
        """Forward a message."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        await self._begin()
        await self._send(message)

    async def _send(self, message: Message) -> None:
        """Send a message; raises ClientLeft if the client takes nothing for too long."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._inner(message)
        except TimeoutError:
            raise ClientLeft from None

    async def _begin(self) -> None:
        if self._start is not None and not self.begun:
            self.begun = True
            await self._send(self._start)

    async def fail(self) -> None:
        """End with an error: raised if nothing was sent, an event if events were, else by breaking the connection."""
        error = ApiError(503, LOST, code="replica_died")
        if not self.begun:
            raise error
        headers = dict((self._start or {}).get("headers", ()))
        if not headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            raise ConnectionError(LOST)  # half an object was sent: only a broken connection can say so
        told = error_body(error) if is_theirs(self._path) else error.body()
        line = b"event: error\n" if is_theirs(self._path) else b""
        event = line + b"data: " + json.dumps(told, separators=(",", ":")).encode() + b"\n\n"
        await self._send({"type": "http.response.body", "body": event, "more_body": False})
