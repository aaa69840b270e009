"""The door of a fleet: reads a request, chooses its replica, passes on what that sends. An ASGI application, no Ray."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter, OrderedDict
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from augury.scale.counts import RouterCounts
from augury.scale.fleet import Fleet, ReplicaLost
from augury.scale.merged_metrics import merged
from augury.scale.prefix import Prefix, prefix_of
from augury.scale.router import NoReplicas, Router
from augury.serve.bodies import Bodies
from augury.serve.errors import ApiError
from augury.serve.keys import Keys
from augury.serve.limits import ADAPTERS, ALL_BODIES, WITH_BODY, WORK, Limits
from augury.serve.messages.errors import error_body, error_response, is_theirs
from augury.serve.stream import ClientLeft, gone

logger = logging.getLogger("augury")
FOR_ALL = (*ADAPTERS, "/augury/drafter")  # each replica must do it
PASSED = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers", "client", "server")
LARGE = 1 << 18  # bytes of a body that is parsed beside the event loop
RESPONSE = re.compile(rb'"id": ?"(resp_[\w-]+)"')  # of /v1/responses, which its replica keeps
KEPT = 1 << 16  # ids of responses whose replica is known
LOST = "the replica that worked on this request has died; its other requests and new ones go on elsewhere."


class Ingress:
    """Routes requests by what they begin with; one that lost its replica before it said anything is sent to another."""

    def __init__(self, fleet: Fleet, limits: Limits, router: Router | None = None, sticky: bool = True) -> None:
        self.fleet, self.limits, self.sticky = fleet, limits, sticky
        self.router = router or Router()
        self.counts = RouterCounts()
        self.at_work: Counter[str] = Counter()  # requests by replica
        self._keys = Keys(limits.api_keys, limits.share)
        self._bodies = Bodies(limits.request_bytes, ALL_BODIES * limits.request_bytes, limits.read_seconds)
        self._responses: OrderedDict[str, str] = OrderedDict()  # the replica that keeps each
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
        if path == "/metrics" and not posted:
            await (await self._metrics())(scope, receive, send)
            return
        if path == "/load" and not posted:
            loads = await self.fleet.everywhere("load")
            await JSONResponse({"server_load": sum(loads.values())})(scope, receive, send)
            return
        body = await self._read(receive) if posted and path in WITH_BODY else b""
        plain = {name: scope[name] for name in PASSED if name in scope}
        if path in FOR_ALL and scope["method"] in ("POST", "PUT", "DELETE"):
            await (await self._everywhere(plain, body))(scope, receive, send)
            return
        relaying = asyncio.create_task(self._relay(plain, body, send))
        leaving = asyncio.create_task(gone(receive))
        try:
            await asyncio.wait({relaying, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if relaying.done():
                relaying.result()
        finally:
            for task in (relaying, leaving):
                task.cancel()
            await asyncio.gather(relaying, leaving, return_exceptions=True)

    async def _read(self, receive: Receive) -> bytes:
        body = await self._bodies.read(receive)
        try:
            return bytes((await body.receive())["body"])
        finally:
            body.release()

    # --- one replica ------------------------------------------------------------------------------------------------

    async def _relay(self, scope: dict[str, Any], body: bytes, send: Send) -> None:
        """Pass a request to its replica, and to one other if that dies before anything of the answer is sent."""
        prefix = await self._prefix(scope, body)
        tried: set[str] = set()
        while True:
            name = self._choose(scope, body, prefix, tried)
            tried.add(name)
            sender = _Sender(send, scope["path"])
            self.at_work[name] += 1
            try:
                await self._pass_on(name, scope, body, sender)
                return
            except ReplicaLost as error:
                logger.warning("%s: replica %s was lost: %s", scope["path"], name, error)
                self.counts.lost(name)
                self._drop(name)
                if sender.begun or len(tried) > 1:
                    await sender.fail()
                    return
            finally:
                self.at_work[name] -= 1

    async def _pass_on(self, name: str, scope: dict[str, Any], body: bytes, sender: _Sender) -> None:
        looking = scope["path"] == "/v1/responses"
        messages = self.fleet.answer(name, scope, body)
        try:
            async for some in messages:
                for message in some:
                    if looking and (found := RESPONSE.search(message.get("body", b""))):
                        looking = False
                        self._keep(found.group(1).decode(), name)
                    await sender.send(message)
        finally:
            await messages.aclose()  # type: ignore[attr-defined]

    async def _prefix(self, scope: dict[str, Any], body: bytes) -> Prefix | None:
        """What to route by; strangers, whom the replica will refuse, leave no trace in the router's memory."""
        headers = dict(scope["headers"])
        shown = headers.get(b"authorization", b"") or b"Bearer " + headers.get(b"x-api-key", b"")
        tenant = self._keys.tenant(shown) if self._keys else ""
        if scope["path"] not in WORK or tenant is None or not self.sticky:
            return None
        if len(body) > LARGE:
            return await asyncio.to_thread(prefix_of, body, tenant)
        return prefix_of(body, tenant)

    def _choose(self, scope: dict[str, Any], body: bytes, prefix: Prefix | None, tried: set[str]) -> str:
        names = self.fleet.names()
        for gone_ in self._known - set(names):
            self._drop(gone_)
        self._known = set(names)
        loads = {name: self.at_work[name] for name in names if name not in tried}
        if not loads:
            raise NoReplicas
        if (keeper := self._keeper(scope["path"], body)) in loads:
            return str(keeper)
        if scope["path"] not in WORK:  # the page and its figures come from one replica as long as it lives
            return self.router.home(b"\0" * 8, loads)
        choice = self.router.choose(prefix, loads)
        self.counts.chosen(choice, len(prefix.blocks) if prefix else 0)
        return choice.replica

    def _drop(self, name: str) -> None:
        self.router.forget(name)
        self._known.discard(name)

    # --- responses that are kept by their replica ---------------------------------------------------------------------

    def _keep(self, response: str, name: str) -> None:
        self._responses[response] = name
        while len(self._responses) > KEPT:
            self._responses.popitem(last=False)

    def _keeper(self, path: str, body: bytes) -> str | None:
        """The replica that keeps the response a request names."""
        if not self._responses or not path.startswith("/v1/responses"):
            return None
        named = path.removeprefix("/v1/responses").strip("/").partition("/")[0]
        if not named and b"previous_response_id" in body:
            try:
                named = json.loads(body).get("previous_response_id")
            except (ValueError, AttributeError, RecursionError):
                return None
        return self._responses.get(named) if isinstance(named, str) else None

    # --- all replicas -------------------------------------------------------------------------------------------------

    async def _metrics(self) -> Response:
        pages = await self.fleet.everywhere("metrics")
        return PlainTextResponse(merged(pages) + self.counts.page(), media_type="text/plain; version=0.0.4")

    async def _everywhere(self, scope: dict[str, Any], body: bytes) -> Response:
        """The answer of the first replica that refuses, else of any: what one cannot do must not look done."""
        answers = await self.fleet.everywhere("whole", scope, body)
        if not answers:
            raise NoReplicas
        status, headers, content = max(answers.values(), key=lambda answer: int(answer[0]))
        response = Response(content, status)
        response.raw_headers = headers
        return response


class _Sender:
    """Holds the start of an answer back until there is some of it, so that it can still become another's."""

    def __init__(self, send: Send, path: str) -> None:
        self._send, self._path = send, path
        self._start: Message | None = None
        self.begun = False

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        await self._begin()
        await self._send(message)

    async def _begin(self) -> None:
        if self._start is not None and not self.begun:
            self.begun = True
            await self._send(self._start)

    async def fail(self) -> None:
        """End the answer with an error: an event, where events have been sent, else a response."""
        error = ApiError(503, LOST, code="replica_died")
        if not self.begun:
            raise error
        headers = dict((self._start or {}).get("headers", ()))
        if not headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            raise ConnectionError(LOST)  # half an object: only a broken connection says so
        told = error_body(error) if is_theirs(self._path) else error.body()
        line = b"event: error\n" if is_theirs(self._path) else b""
        event = line + b"data: " + json.dumps(told, separators=(",", ":")).encode() + b"\n\n"
        await self._send({"type": "http.response.body", "body": event, "more_body": False})
