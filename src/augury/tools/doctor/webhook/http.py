"""HTTP/1.1 over asyncio and h11, with a limit on everything that a client could prolong or enlarge without end."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable

import h11

from augury.tools.doctor.webhook.app import HttpReply
from augury.tools.doctor.webhook.room import Full, Room, Share

Answer = Callable[[str, str, bytes], Awaitable[HttpReply]]
HEAD = 32_768  # bytes of a request's head
IDLE = 120.0  # seconds a connection may be silent between requests
WHOLE = 20.0  # seconds within which a request must arrive in full
GOODBYE = 2.0  # seconds for the TLS shutdown, and for what a refused client is still sending
PIECE = 65_536
MOST_CONNECTIONS = 256
ALL_BODIES = 64_000_000  # bytes of all bodies in memory, complete or not


class TooLarge(Exception):
    """A body exceeds the limit."""


class WebhookListener:
    """A server on one port."""

    def __init__(self, answer: Answer, most_bytes: int) -> None:
        """Create the server without opening its port."""
        self.answer, self.most_bytes = answer, most_bytes
        self.room = Room(max(ALL_BODIES, most_bytes))
        self.open: set[asyncio.Task[None]] = set()
        self.busy: set[asyncio.Task[None]] = set()  # those with a request in progress
        self.server: asyncio.Server | None = None

    async def start(self, host: str, port: int, context: ssl.SSLContext | None) -> int:
        """Start listening and return the port."""
        more = {"ssl_handshake_timeout": WHOLE, "ssl_shutdown_timeout": GOODBYE} if context else {}
        self.server = await asyncio.start_server(self._connected, host, port, ssl=context, limit=PIECE, **more)
        return int(self.server.sockets[0].getsockname()[1])

    async def stop(self, seconds: float = 5.0) -> None:
        """Stop accepting connections; requests in progress get `seconds` to be answered, idle ones are closed."""
        assert self.server is not None
        self.server.close()
        for task in self.open - self.busy:
            task.cancel()
        if self.busy:
            await asyncio.wait(set(self.busy), timeout=seconds)
        left = list(self.open)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self.open) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self.open.add(task)
        try:
            await self._conversation(reader, writer, task)
            writer.close()
            await writer.wait_closed()
        except (OSError, TimeoutError, h11.ProtocolError, asyncio.CancelledError):
            writer.transport.abort()  # do not wait for clients that do not respond
        finally:
            self.open.discard(task)
            self.busy.discard(task)

    async def _conversation(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        """Serve one connection's requests in order until either side closes it."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD)
        while True:
            try:
                request = await asyncio.wait_for(_event(connection, reader), IDLE)
                if not isinstance(request, h11.Request):
                    return
                self.busy.add(task)
                self._check_length(request)
                method, target = request.method.decode(), request.target.decode(errors="replace")
                with self.room.share() as share:
                    body = await asyncio.wait_for(self._body(connection, reader, writer, share), WHOLE)
                    reply = await self.answer(method, target, body)
                    del body
            except h11.RemoteProtocolError as error:
                method, reply = "GET", HttpReply(error.error_status_hint, f"{error}\n".encode())
            except Full:
                method, reply = "GET", HttpReply(503, b"too many reviews at once; try again\n")
            except TooLarge:
                method, reply = "GET", HttpReply(413, f"more than {self.most_bytes} bytes\n".encode())
            await _send(connection, writer, reply, method == "HEAD")
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                if connection.their_state in (h11.SEND_BODY, h11.ERROR):
                    await _discard(reader)
                return
            connection.start_next_cycle()
            self.busy.discard(task)

    def _check_length(self, request: h11.Request) -> None:
        """Refuse a Content-Length above the limit before reading the body."""
        said = dict(request.headers).get(b"content-length", b"0")
        if int(said) > self.most_bytes:
            raise TooLarge

    async def _body(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, share: Share
    ) -> bytes:
        if connection.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            writer.write(connection.send(go_on) or b"")
        body = bytearray()
        try:
            await self._fill(body, connection, reader, share)
        except BaseException:
            body.clear()  # now, because the error may keep this frame alive until garbage collection
            raise
        return bytes(body)

    async def _fill(
        self, body: bytearray, connection: h11.Connection, reader: asyncio.StreamReader, share: Share
    ) -> None:
        while not isinstance(event := await _event(connection, reader), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise h11.RemoteProtocolError("the connection ended within a body")
            body += event.data
            if len(body) > self.most_bytes:
                raise TooLarge
            share.grow(len(body))


async def _event(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Event | type[h11.PAUSED]:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(PIECE))
    return event  # type: ignore[return-value]


async def _discard(reader: asyncio.StreamReader) -> None:
    """Read on for a while and keep nothing: a client that is still writing would see an error and not its answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GOODBYE):
            while await reader.read(PIECE):
                pass


async def _send(connection: h11.Connection, writer: asyncio.StreamWriter, reply: HttpReply, head_alone: bool) -> None:
    if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    headers = [("content-type", reply.kind), ("content-length", str(len(reply.body)))]
    if reply.status >= 400:
        headers.append(("connection", "close"))
    parts = [connection.send(h11.Response(status_code=reply.status, headers=headers))]
    if not head_alone:
        parts.append(connection.send(h11.Data(data=reply.body)))
    parts.append(connection.send(h11.EndOfMessage()))
    writer.write(b"".join(part or b"" for part in parts))
    await asyncio.wait_for(writer.drain(), WHOLE)
