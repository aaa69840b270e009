"""Messages between the server and its engine process: JSON objects, each preceded by its length. Never pickles."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import struct
from collections.abc import Iterator
from typing import Any

from augury.config.prediction import KEY as PREDICTION

LONG = 4096  # entries of lists above which a message is packed in a thread
HEADER = struct.Struct("!I")
Message = dict[str, Any]


class Closed(Exception):
    """The other side has gone."""


def pack(message: Message) -> bytes:
    """One message as bytes."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(len(body)) + body


async def pack_aside(message: Message) -> bytes:
    """`pack` for a job's message, in a thread if its lists are long."""
    params = message["params"]
    entries = sum(len(params.get(name) or ()) for name in ("logit_bias", "allowed_token_ids"))
    entries += len((params.get("extra_args") or {}).get(PREDICTION) or ())
    return await asyncio.to_thread(pack, message) if entries > LONG else pack(message)


async def read(reader: asyncio.StreamReader) -> Message:
    """The next message on an asyncio stream."""
    try:
        (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
        message: Message = json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        raise Closed from None
    return message


class Channel:
    """The engine process's end: it looks for messages between two steps and never waits for one while it has work."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._buffer = bytearray()

    def send(self, message: Message) -> None:
        """Send one message; raises Closed if the other side has gone."""
        try:
            self._end.sendall(pack(message))
        except ConnectionError:
            raise Closed from None

    def take(self, wait: float | None) -> list[Message]:
        """Messages that have come, waiting up to `wait` seconds for the first (None: for as long as it takes)."""
        readable, _, _ = select.select([self._end], [], [], wait)
        while readable:
            try:
                piece = self._end.recv(1 << 20)
            except ConnectionError:
                piece = b""
            if not piece:
                raise Closed
            self._buffer += piece
            readable, _, _ = select.select([self._end], [], [], 0)
        return list(self._messages())

    def _messages(self) -> Iterator[Message]:
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            yield json.loads(body)
