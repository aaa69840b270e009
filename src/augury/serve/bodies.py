"""Reading request bodies: each has a size and a deadline, and all of them together have a budget."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive

from augury.serve.errors import ApiError
from augury.serve.stream import ClientLeft

SMALL = 1 << 16  # bytes of a body that need no room in the budget, so that large ones never shut out small ones


class Bodies:
    """The bodies that are in memory now, complete or not."""

    def __init__(self, each: int, total: int, seconds: float) -> None:
        self.each, self.total, self.seconds = each, total, seconds
        self.held = 0

    async def read(self, receive: Receive) -> Body:
        """Read a whole body; raises ApiError if it is too large, too slow or does not fit the budget of all."""
        body = Body(self, receive)
        try:
            async with asyncio.timeout(self.seconds):
                while await body.more():
                    pass
        except TimeoutError:
            body.release()
            raise ApiError(408, f"the request did not come within {self.seconds:g} seconds.") from None
        except BaseException:
            body.release()
            raise
        return body

    def too_large(self) -> ApiError:
        """The answer to a body over the limit."""
        return ApiError(413, f"the request is larger than {self.each} bytes.", code="request_too_large")


class Body:
    """One body; what it takes of the budget is returned once, when it is parsed or its request ends."""

    def __init__(self, bodies: Bodies, receive: Receive) -> None:
        self._bodies = bodies
        self._receive = receive
        self._data = bytearray()
        self._counted = 0
        self._given = False

    async def more(self) -> bool:
        """Read the next piece; returns whether another will come."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        self._data += message.get("body", b"")
        if len(self._data) > self._bodies.each:
            raise self._bodies.too_large()
        self._count(max(0, len(self._data) - SMALL) - self._counted)
        return bool(message.get("more_body"))

    def _count(self, more: int) -> None:
        if self._bodies.held + more > self._bodies.total:
            why = f"requests that are being read hold {self._bodies.total} bytes together, which is the limit"
            raise ApiError(429, f"{why}; try again.", code="too_many_bytes")
        self._bodies.held += more
        self._counted += more

    def release(self) -> None:
        """Return what it takes of the budget."""
        self._bodies.held -= self._counted
        self._counted, self._data = 0, bytearray()

    async def receive(self) -> Message:
        """The whole body as one message, then what comes after it."""
        if self._given:
            return await self._receive()
        self._given = True
        whole, self._data = bytes(self._data), bytearray()
        return {"type": "http.request", "body": whole, "more_body": False}
