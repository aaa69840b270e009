"""Server-sent events, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from augury.serve.errors import ApiError
from augury.serve.scope import HANG_UP, STALLED

if TYPE_CHECKING:
    from augury.serve.answers import Answers

logger = logging.getLogger("augury")
Result = TypeVar("Result")
STALL = 1.0  # seconds that a client may take nothing of a full buffer while others wait for its slots
SLICE = 0.002  # seconds that one stream may keep the event loop
DONE = b"data: [DONE]\n\n"


class ClientLeft(Exception):
    """The client no longer waits for the answer."""


async def while_connected(
    receive: Receive, work: Coroutine[Any, Any, Result], cut_off: asyncio.Event | None = None
) -> Result:
    """Do the work, but drop it the moment the client goes away or is cut off."""
    task: asyncio.Task[Result] = asyncio.create_task(work)
    watchers = [asyncio.create_task(gone(receive))]
    if cut_off is not None:
        watchers.append(asyncio.create_task(_happened(cut_off)))
    try:
        await asyncio.wait({task, *watchers}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return task.result()
    finally:
        for one in (task, *watchers):
            one.cancel()
        await asyncio.gather(task, *watchers, return_exceptions=True)  # by now the work has cleaned up


async def _happened(event: asyncio.Event) -> None:
    await event.wait()


async def gone(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends each object as an event; an error in the middle becomes an event of its own, and the end."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[dict[str, Any] | str | bytes],
        release: Callable[[], None],
        overrun: asyncio.Event,
        in_the_way: Callable[[], bool],
        done: bytes = DONE,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events = events
        self._release = release  # called in the end, even if not one event was asked for
        self._overrun = overrun  # the client reads too slowly
        self._in_the_way = in_the_way  # whether it holds slots that others wait for
        self._done = done  # marks the end of the stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; a client that leaves ends it."""
        watching = asyncio.create_task(self._watch(scope[STALLED]))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await while_connected(receive, self._send(send), self._overrun)
        except (ClientLeft, OSError):  # it left, perhaps while we wrote
            if self._overrun.is_set():
                scope[HANG_UP]()  # what it has not read by now would be kept for it
                await gone(receive)
        finally:
            watching.cancel()
            self._release()

    async def _watch(self, stalled: Callable[[], float]) -> None:
        """Cut off a client that takes nothing as soon as others wait for its slots; else the write timeout applies."""
        while not (stalled() >= STALL and self._in_the_way()):
            await asyncio.sleep(STALL / 4)
        self._overrun.set()

    async def _send(self, send: Send) -> None:
        events = self.events
        try:
            begun = time.monotonic()
            async for event in events:
                await send({"type": "http.response.body", "body": _event(event), "more_body": True})
                if time.monotonic() - begun > SLICE:  # ready events and a socket that takes them never wait
                    await asyncio.sleep(0)
                    begun = time.monotonic()
        except ApiError as error:
            await send({"type": "http.response.body", "body": _event(error.body()), "more_body": True})
        finally:
            await events.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": self._done, "more_body": False})


def _event(value: dict[str, Any] | str | bytes) -> bytes:
    """An event's bytes: a text is already JSON, an object's type gets a line of its own, bytes are sent as they are."""
    if isinstance(value, bytes):
        return value
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    named = f"event: {value['type']}\n" if isinstance(value, dict) and "type" in value else ""
    return f"{named}data: {text}\n\n".encode()


async def answer(answers: Answers, request: Request, done: bytes = DONE) -> Response:
    """The response to a request that is being worked on: whole, or as a stream of events."""
    if not answers.request.stream:
        return await while_connected(request.receive, answers.whole())
    try:
        await while_connected(request.receive, answers.begin())
    except BaseException:
        answers.drop()
        raise
    assert answers.batch is not None
    return EventStream(answers.events(), answers.drop, answers.batch.queue.overrun, answers.in_the_way, done=done)
