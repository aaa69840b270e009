"""One HTTP/1.1 connection to a streaming server, as an asyncio protocol over h11.

Not by httpx because what is measured here is microseconds: an event is stamped in the very call in which the loop hands
its bytes over, no task is woken for it, and a core carries far more streams than a server sends.
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
    """A stream that did not go as it should; `kind` is what it is counted under."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Address:
    """Where a server listens, and what every request to it says."""

    def __init__(self, base: str, authorization: str | None) -> None:
        parts = urlsplit(base)
        self.host, self.port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/")
        self._headers = {"Host": parts.netloc.rpartition("@")[2], "Content-Type": "application/json"}
        self._headers |= {"Accept": "text/event-stream"} | ({"Authorization": authorization} if authorization else {})

    def post(self, path: str, body: bytes) -> tuple[h11.Request, h11.Data, h11.EndOfMessage]:
        """A request, head and body."""
        headers = list((self._headers | {"Content-Length": str(len(body))}).items())
        head = h11.Request(method="POST", target=f"{self._path}{path}", headers=headers)
        return head, h11.Data(data=body), h11.EndOfMessage()


class Connection(asyncio.Protocol):
    """Sends one request after another and gives the events of each, with the time at which they came."""

    def __init__(self) -> None:
        self.open = False
        self.used = False  # whether an answer has come over it
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[int] | None = None
        self._clear()

    def _clear(self) -> None:
        self._begun, self._status = False, 0
        self._lines = b""  # bytes of the body that are not yet a whole line
        self._plain: list[bytes] = []  # the body of an answer that is no stream

    async def ask(self, request: Iterable[h11.Event], on_event: Callable[[float, bytes], None]) -> int:
        """Send a request; each `data:` line goes to `on_event`; gives the status once the answer has ended."""
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
        """What an answer that was no stream said."""
        return b"".join([*self._plain, self._lines])

    def close(self) -> None:
        """End the connection."""
        self.open = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The loop says that it is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.open = transport, True

    def connection_lost(self, error: Exception | None) -> None:
        """The loop says that it is closed, which ends an answer without a length and cuts any other off."""
        self.open = False
        if self._waits and self._begun and error is None:
            self._take(b"", time.perf_counter(), "stream cut", "the server closed the connection midway")
        kind, when = ("stream cut", "midway") if self._begun else ("connection lost", "before it answered")
        self._fail(kind, f"the server closed the connection {when}")

    def data_received(self, data: bytes) -> None:
        """The loop hands bytes over."""
        if not data:  # which h11 would take for the end
            return
        self._begun = True
        self._take(data, time.perf_counter(), "not HTTP", f"cannot read {data[:60]!r}")

    @property
    def _waits(self) -> bool:
        return self._done is not None and not self._done.done()

    def _take(self, data: bytes, now: float, kind: str, message: str) -> None:
        """Bytes through the parser, as far as they go; `kind` and `message` say what it is if they are no answer."""
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
        """Bytes of the answer: events by the line, or the text of an error."""
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
                self._plain.append(line)  # an answer that is no stream at all


async def connect(address: Address, timeout: float) -> Connection:
    """Open a connection, or say why not."""
    loop = asyncio.get_running_loop()
    try:
        opening = loop.create_connection(Connection, address.host, address.port, ssl=address.tls)
        _, connection = await asyncio.wait_for(opening, timeout)
    except TimeoutError:
        raise StreamError("timeout", f"no connection within {timeout:g} s") from None
    except OSError as error:
        raise StreamError("cannot connect", str(error)) from None
    return connection
