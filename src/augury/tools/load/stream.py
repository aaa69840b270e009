"""One HTTP/1.1 connection to a streaming server, as an asyncio protocol over h11.

httpx is not used because microseconds matter here: an event is timestamped in the very call in which the loop delivers
its bytes, no task is woken for it, and a core handles far more streams than a server sends.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import h11

LONGEST_HEAD = 1 << 16
LONGEST_LINE = 1 << 24


class StreamError(Exception):
    """A stream that failed; `kind` is the category under which it is counted."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Address:
    """A server's address and the headers of every request to it."""

    def __init__(self, base: str, authorization: str | None) -> None:
        parts = urlsplit(base)
        self.host, self.port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/")
        self._headers = {"Host": parts.netloc.rpartition("@")[2], "Content-Type": "application/json"}
        self._headers |= {"Accept": "text/event-stream"} | ({"Authorization": authorization} if authorization else {})

    def post(self, path: str, body: bytes) -> tuple[h11.Request, h11.Data, h11.EndOfMessage]:
        """The h11 events of a POST request."""
        headers = list((self._headers | {"Content-Length": str(len(body))}).items())
        head = h11.Request(method="POST", target=f"{self._path}{path}", headers=headers)
        return head, h11.Data(data=body), h11.EndOfMessage()


class Connection(asyncio.Protocol):
    """Sends one request after another and passes on the events of each with their arrival times."""

    def __init__(self) -> None:
        self.open = False
        self.used = False  # whether it has already served a request
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[int] | None = None
        self._clear()

    def _clear(self) -> None:
        self._begun, self._status = False, 0
        self._lines = b""  # bytes of the body's last, incomplete line
        self._plain: list[bytes] = []  # the body of a response that is not a stream

    async def ask(self, request: Iterable[h11.Event], on_event: Callable[[float, bytes], None]) -> int:
        """Send a request, pass each `data:` line to `on_event`, and return the status once the response has ended."""
        assert self._transport is not None and self.open and self._done is None
        self._clear()
        self._on_event = on_event
        self._done = asyncio.get_running_loop().create_future()
        if self.used:
            self._http.start_next_cycle()
        self._transport.write(b"".join(self._http.send(part) or b"" for part in request))
        try:
            return await self._done
        finally:
            self._done = None
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                self.close()
            self.used = True

    @property
    def body(self) -> bytes:
        """The body of a response that was not a stream."""
        return b"".join([*self._plain, self._lines])

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop when the connection is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.open = transport, True

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop on closing, which ends a response without a length and cuts off any other."""
        self.open = False
        if self._waits and self._begun and error is None:
            self._take(b"", time.perf_counter(), "stream cut", "the server closed the connection midway")
        kind, when = ("stream cut", "midway") if self._begun else ("connection lost", "before it answered")
        self._fail(kind, f"the server closed the connection {when}")

    def data_received(self, data: bytes) -> None:
        """Called by the loop with received bytes."""
        if not data:  # h11 would take it as the end of the stream
            return
        self._begun = True
        self._take(data, time.perf_counter(), "not HTTP", f"cannot read {data[:60]!r}")

    @property
    def _waits(self) -> bool:
        return self._done is not None and not self._done.done()

    def _take(self, data: bytes, now: float, kind: str, message: str) -> None:
        """Parse received bytes; if they are not a valid response, it fails with `kind` and `message`."""
        if not self._waits:
            return
        try:
            self._http.receive_data(data)
            while self._waits and (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    self._status = event.status_code
                elif isinstance(event, h11.Data):
                    self._body(bytes(event.data), now)
                elif isinstance(event, h11.EndOfMessage) and self._done is not None:
                    self._done.set_result(self._status)
                elif isinstance(event, h11.ConnectionClosed):
                    return
        except (h11.ProtocolError, ValueError):
            self._fail(kind, message)

    def _fail(self, kind: str, message: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(StreamError(kind, message))

    def _body(self, part: bytes, now: float) -> None:
        """Process bytes of the body: events line by line, or the text of an error."""
        if self._status != 200:
            self._plain.append(part)
            return
        *lines, self._lines = (self._lines + part).split(b"\n")
        if len(self._lines) > LONGEST_LINE:
            raise ValueError
        for line in lines:
            if line.startswith(b"data:"):
                self._on_event(now, line[5:].strip())
            elif line[:1] == b"{":
                self._plain.append(line)  # a response that is not a stream at all


async def connect(address: Address, timeout: float) -> Connection:
    """Open a connection; a StreamError if that fails."""
    loop = asyncio.get_running_loop()
    try:
        opening = loop.create_connection(Connection, address.host, address.port, ssl=address.tls)
        _, connection = await asyncio.wait_for(opening, timeout)
    except TimeoutError:
        raise StreamError("timeout", f"no connection within {timeout:g} s") from None
    except OSError as error:
        raise StreamError("cannot connect", str(error)) from None
    return connection
