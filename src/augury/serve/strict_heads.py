"""Reads requests more strictly than h11: refuses what two servers may read differently, and bodies in chunks of a byte
each, which take a thousand times as long to read as they take to send."""

from __future__ import annotations

import re
from typing import NoReturn

import h11
from h11._receivebuffer import ReceiveBuffer

MOST_LINES, MOST_BYTES = 128, 1 << 15  # of a head
FEW, CHUNK = 1024, 512  # chunks of a body that may be as small as they like; bytes that more must have on average
BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)")  # a line end that is not both characters
LENGTHS = (b"\ntransfer-encoding:", b"\ncontent-length:")  # a space before the colon is refused by h11
END = b"\r\n\r\n"
OTHER_VERSION = b"PRI * HTTP/2"


class StrictHeads(ReceiveBuffer):
    """h11's buffer, which splits requests into parts; it is private to h11, so test_serve_http.py watches it."""

    def __init__(self) -> None:
        super().__init__()
        self._chunks = self._taken = 0  # of the body so far, and its bytes

    def maybe_extract_next_line(self) -> bytearray | None:
        """The line before a chunk, with its size."""
        line: bytearray | None = super().maybe_extract_next_line()
        if line is not None:
            self._chunks += 1
            if self._chunks > FEW + self._taken // CHUNK:
                _refuse("a body in chunks that are too small")
        return line

    def maybe_extract_at_most(self, count: int) -> bytearray | None:
        """Part of a body."""
        data: bytearray | None = super().maybe_extract_at_most(count)
        self._taken += len(data or b"")
        return data

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """The lines of a head once it is complete; also the trailers of a chunked body."""
        data = self._data
        end = data.find(END, 0, MOST_BYTES + len(END))
        head = data[: end + len(END) if end >= 0 else MOST_BYTES]
        if head.startswith(OTHER_VERSION):
            _refuse("this server speaks HTTP/1.1 only")
        if end < 0 and len(data) > MOST_BYTES:
            _refuse(f"a head of more than {MOST_BYTES} bytes")
        if BARE.search(head, 0, len(head) - (head[-1:] == b"\r")):  # the last may be half of a line end
            _refuse("a line that does not end in CR LF")
        if head.count(b"\n") > MOST_LINES:
            _refuse(f"a head of more than {MOST_LINES} lines")
        if all(name in head.lower() for name in LENGTHS):
            _refuse("two lengths of one body")
        lines: list[bytearray] | None = super().maybe_extract_lines()
        if lines is not None:
            self._chunks = self._taken = 0
        return lines


def _refuse(why: str) -> NoReturn:
    raise h11.RemoteProtocolError(why)
