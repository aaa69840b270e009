"""One HTTP/1.1 connection to a streaming server, as an asyncio protocol.

By hand and not by a library because what is measured here is microseconds: an event is stamped in the very call in
which the loop hands its bytes over, no task is woken for it, and a core carries far more streams than a server sends.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from urllib.parse import urlsplit

LONGEST_HEAD = 1 << 16
LONGEST_LINE = 1 << 24


class StreamError(Exception):
    """A stream that did not go as it should; `kind` is what it is counted under."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Address:
    """Where a server listens, and how requests are put."""

    def __init__(self, base: str, authorization: str | None) -> None:
        parts = urlsplit(base)
        self.host, self.port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.path = parts.path.rstrip("/")
        self.netloc = parts.netloc.rpartition("@")[2]
        self._authorization = f"Authorization: {authorization}\r\n" if authorization else ""

    def post(self, path: str, body: bytes) -> bytes:
        """A request, head and body."""
        head = (
            f"POST {self.path}{path} HTTP/1.1\r\nHost: {self.netloc}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream\r\n{self._authorization}Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1", "replace") + body


class Connection(asyncio.Protocol):
    """Sends one request after another and gives the events of each, with the time at which they came."""

    def __init__(self) -> None:
        self.open = False
        self.used = False  # whether an answer has come over it
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[int] | None = None
        self._on_event: Callable[[float, bytes], None] = lambda now, data: None
        self._clear()

    def _clear(self) -> None:
        self._buffer = b""  # bytes of HTTP not yet understood
        self._lines = b""  # bytes of the body not yet a whole line
        self._read = self._head
        self._status, self._left = 0, 0
        self._until_close = self._close_after = False
        self._plain: list[bytes] = []  # the body of an answer that is no stream

    async def ask(self, request: bytes, on_event: Callable[[float, bytes], None]) -> int:
        """Send a request; each `data:` line goes to `on_event`; gives the status once the answer has ended."""
        assert self._transport is not None and self.open and self._done is None
        self._clear()
        self._on_event = on_event
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._done
        finally:
            ended = self._done.done() and not self._done.cancelled() and self._done.exception() is None
            self._done = None
            if not ended or self._close_after:
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
        """The loop says that it is closed."""
        self.open = False
        if self._until_close and error is None:
            self._finish()
        else:
            nothing = self._read == self._head and not self._buffer
            kind = "connection lost" if nothing else "stream cut"
            self._fail(kind, f"the server closed the connection {'before it answered' if nothing else 'midway'}")

    def data_received(self, data: bytes) -> None:
        """The loop hands bytes over."""
        now = time.perf_counter()
        self._buffer += data
        try:
            while self._buffer and self._done is not None and not self._done.done() and self._read(now):
                pass
        except (ValueError, IndexError):
            self._fail("not HTTP", f"cannot read {self._buffer[:60]!r}")

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(self._status)

    def _fail(self, kind: str, message: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(StreamError(kind, message))

    def _head(self, now: float) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            if len(self._buffer) > LONGEST_HEAD:
                raise ValueError
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        if not first.startswith("HTTP/"):
            raise ValueError
        self._status = int(first.split(" ", 2)[1])
        self._buffer = rest
        if 100 <= self._status < 200:
            return True
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._close_after = fields.get("connection", "").lower() == "close" or first.startswith("HTTP/1.0")
        if "chunked" in fields.get("transfer-encoding", "").lower():
            self._read = self._chunk_size
        elif "content-length" in fields:
            self._left, self._read = int(fields["content-length"]), self._counted
            if not self._left:
                self._finish()
        else:
            self._until_close, self._close_after, self._read = True, True, self._rest
        return True

    def _chunk_size(self, now: float) -> bool:
        line, found, rest = self._buffer.partition(b"\r\n")
        if not found:
            if len(line) > LONGEST_HEAD:
                raise ValueError
            return False
        self._buffer = rest
        self._left = int(line.partition(b";")[0], 16)
        self._read = self._chunk if self._left else self._trailer
        return True

    def _chunk(self, now: float) -> bool:
        part, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        self._left -= len(part)
        self._body(part, now)
        if not self._left:
            self._read = self._chunk_end
        return True

    def _chunk_end(self, now: float) -> bool:
        if len(self._buffer) < 2:
            return False
        if self._buffer[:2] != b"\r\n":
            raise ValueError
        self._buffer, self._read = self._buffer[2:], self._chunk_size
        return True

    def _trailer(self, now: float) -> bool:
        line, found, self._buffer = self._buffer.partition(b"\r\n")
        if not found:
            self._buffer = line
            return False
        if not line:
            self._finish()
        return True

    def _counted(self, now: float) -> bool:
        part, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        self._left -= len(part)
        self._body(part, now)
        if not self._left:
            self._finish()
        return True

    def _rest(self, now: float) -> bool:
        part, self._buffer = self._buffer, b""
        self._body(part, now)
        return False

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
