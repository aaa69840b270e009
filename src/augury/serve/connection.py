"""A connection with deadlines for the rest of a request and for the client to take the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from augury.serve.scope import HANG_UP, STALLED
from augury.serve.stream import gone
from augury.serve.strict_heads import StrictHeads

PROGRESS = 1 << 12  # bytes that a client must take of a full buffer within the write timeout
UNREAD = 1 << 18  # bytes of an unread body that are discarded after the response
MARGIN = 1.0  # seconds by which bodies.py, whose refusal says more, times out before us


class Patient(H11Protocol):
    """uvicorn's protocol with read and write timeouts."""

    read_seconds = write_seconds = 0.0
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _full: tuple[float, int] | None = None  # when a full buffer last made progress, and the bytes it held then
    _part: Any = None  # the part of a request that is waited for
    _thrown = 0

    def connection_made(self, transport: Any) -> None:
        """Start the read timeout, also for a client that connects and sends nothing."""
        super().connection_made(transport)
        inner = self.app
        self.conn._receive_buffer = StrictHeads()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if transport.is_closing():  # what followed the head was refused before we got to run
                await gone(receive)
                return
            scope[HANG_UP], scope[STALLED] = transport.abort, self._stalled
            await inner(scope, receive, send)

        self.app = app
        self._expect(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        """Process data, then wait for what is still missing; nothing is read after a refusal."""
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
            self._thrown += len(data)
            if self._thrown > UNREAD:
                self.transport.abort()
                return
        super().data_received(data)
        self._expect(self.conn.their_state)

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request, or hang up if a response has begun already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def on_response_complete(self) -> None:
        """Reset the count of discarded bytes for the next request."""
        super().on_response_complete()
        self._thrown = 0

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel both timeouts."""
        self._expect(None)
        self._rest()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start to watch what the client takes: it does not keep up."""
        super().pause_writing()
        self._full = self.loop.time(), self.transport.get_write_buffer_size()
        self._watch()

    def resume_writing(self) -> None:
        """Stop watching: the client has caught up."""
        super().resume_writing()
        self._full = None
        self._rest()

    def _expect(self, part: Any) -> None:
        """Restart the read timeout when a different part of a request is missing, not for bytes that trickle in."""
        if part not in (h11.IDLE, h11.SEND_BODY):
            part = None
        if part is not self._part or (part is not None and self._reading is None):
            if self._reading is not None:
                self._reading.cancel()
                self._reading = None
            if part is not None:
                wait = self.read_seconds + (MARGIN if part is h11.SEND_BODY else 0)
                self._reading = self.loop.call_later(wait, self.transport.close)
            self._part = part

    def _watch(self) -> None:
        self._rest()
        left = self.transport.get_write_buffer_size()
        self._writing = self.loop.call_later(self.write_seconds, self._look, left)

    def _look(self, before: int) -> None:
        if before - self.transport.get_write_buffer_size() >= PROGRESS:
            self._watch()
        else:
            self.transport.abort()  # close() would wait until everything is taken

    def _stalled(self) -> float:
        """Seconds since the client last took PROGRESS bytes of a full buffer; 0 while there is room."""
        if self._full is None:
            return 0.0
        since, before = self._full
        left = self.transport.get_write_buffer_size()
        if before - left >= PROGRESS:
            since, self._full = self.loop.time(), (self.loop.time(), left)
        return self.loop.time() - since

    def _rest(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None


def with_patience(read_seconds: float, write_seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol with deadlines for headers, bodies and answers, and with strict parsing of headers."""
    return type("Patient", (Patient,), {"read_seconds": read_seconds, "write_seconds": write_seconds})
