"""Frames between the engine and the processes of its grammars: a JSON head and raw bytes. Never pickles."""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import Any

SIZES = struct.Struct("!II")
RECORD = struct.Struct("!III")  # messages of the fork server, both ways: one of the words below, a process, a value
FORK, KILL, READY, ENDED, FAILED = range(5)
Frame = tuple[dict[str, Any], bytes]


class Gone(Exception):
    """The other side has closed, or does not answer."""


class Link:
    """One end of a stream of frames."""

    def __init__(self, end: socket.socket, seconds: float | None = None) -> None:
        self.socket = end
        self._held = bytearray()
        if seconds is not None:  # the kernel's own time-out spares a call before every read
            limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        """Write one frame."""
        text = json.dumps(head, separators=(",", ":")).encode()
        try:
            self.socket.sendall(SIZES.pack(len(text), len(body)) + text + body)
        except OSError as error:  # a time-out too, where one is set
            raise Gone(str(error)) from None

    def receive(self) -> Frame:
        """Wait for the next frame; Gone if none comes within the link's time-out."""
        while (frame := self._frame()) is None:
            self._fill()
        return frame

    def poll(self) -> Frame | None:
        """The next frame if it has arrived, or None."""
        while (frame := self._frame()) is None and select.select([self.socket], [], [], 0)[0]:
            self._fill()
        return frame

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _fill(self) -> None:
        try:
            more = self.socket.recv(1 << 20)
        except OSError as error:
            raise Gone(str(error)) from None
        if not more:
            raise Gone("closed")
        self._held += more

    def _frame(self) -> Frame | None:
        if len(self._held) < SIZES.size:
            return None
        head, body = SIZES.unpack_from(self._held)
        whole = SIZES.size + head + body
        if len(self._held) < whole:
            return None
        text = bytes(self._held[SIZES.size : SIZES.size + head])
        rest = bytes(self._held[SIZES.size + head : whole])
        del self._held[:whole]
        return json.loads(text), rest
