"""Streams recorded conversations from the files that clients, servers and benchmarks write.

The format is inferred from the content: JSON lines, one JSON document (a list of records, or one record), a vLLM
server's log, or, if asked for, plain text with one document per line. Any of them may be compressed with gzip.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from augury.tools.replay.records import Conversation, Message, Odd, RecordPlace, conversations, unwrapped
from augury.tools.replay.vllm_log import REQUEST, read_log

__all__ = ["Conversation", "Message", "TraceError", "TraceReader"]

HEAD = 1 << 16  # characters from which the format is inferred
CHUNK = 1 << 20
RECORD = 64 << 20  # characters of one record, or of a document that is not a list
RATIO, FREE = 250, 64 << 20  # text beyond both this ratio to the bytes on disk and this size is a zip bomb
HALF = 16  # characters at the end in which a number, a name or an escape may be incomplete
BETWEEN = re.compile(r"[\s,]*")  # between two elements of a list
KNOWN = (
    'known are JSON lines and JSON lists of {"messages": [...]}, {"prompt", "completion"}, {"request", "response"}, '
    '{"conversations": [...]}, {"traj": [...]} or {"prompt_token_ids", "token_ids"}, and logs of a vLLM server'
)


Located = tuple[Any, str]  # a JSON value, and "line 3" or "record 3"


class TraceError(Odd):
    """A trace that cannot be read; the message names the file and the line or record."""


class TraceReader:
    """Yields the conversations of some files, and records formats and truncated records on the way."""

    def __init__(
        self, paths: Sequence[Path], tenant_field: str | None = None, limit: int | None = None, plain: bool = False
    ) -> None:
        """Check the files; `limit` stops after so many conversations, `plain` allows text, one document per line."""
        self.paths, self.tenant_field, self.limit, self.plain = list(paths), tenant_field, limit, plain
        self.records = 0  # conversations yielded
        self.torn: list[str] = []  # places where a last record was cut off
        self.formats: dict[str, str] = {}  # by file
        for path in self.paths:
            if not path.is_file():
                raise TraceError(f"{path}: {'a directory, name its files' if path.is_dir() else 'no such file'}.")
        self.total_bytes = sum(path.stat().st_size for path in self.paths)
        self._before = 0  # bytes of the files already read to the end
        self._raw: IO[bytes] | None = None

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, as stored on disk."""
        return self._before + (self._raw.tell() if self._raw else 0)

    def __iter__(self) -> Iterator[Conversation]:
        """Every conversation of every file, in order."""
        for path in self.paths:
            with path.open("rb") as raw:
                self._raw = raw
                try:
                    for conversation in self._read(path, raw):
                        if self.limit is not None and self.records >= self.limit:
                            return
                        self.records += 1
                        yield conversation
                finally:
                    self._raw = None
            self._before += path.stat().st_size

    def _read(self, path: Path, raw: IO[bytes]) -> Iterator[Conversation]:
        stream = _Text(path, raw)
        head = stream.peek(HEAD)
        kind = _kind(head, self.plain)
        self.formats[str(path)] = kind
        if kind == "unknown":
            raise TraceError(f"{path}: not a trace{'' if head.strip() else ', it is empty'}; {KNOWN}.")
        if kind == "vLLM log":
            yield from read_log(stream.lines(), path)
        elif kind == "text":
            for number, line in enumerate(stream.lines(), 1):
                if line.strip():
                    yield Conversation(
                        [Message("assistant", line.rstrip("\r\n"))], False, path.stem, "", f"line {number}"
                    )
        else:
            yield from self._records(path, stream, kind)
        if stream.cut:
            self.torn.append(f"{path}: the compressed data ends too early")

    def _records(self, path: Path, stream: _Text, kind: str) -> Iterator[Conversation]:
        found = {"JSON lines": self._lines, "JSON list": self._elements, "JSON": self._whole}[kind]
        for value, where in found(path, stream):
            inside = unwrapped(value)
            for number, record in enumerate(inside, 1):
                place = where if len(inside) == 1 else f"{where}, element {number}"
                try:
                    yield from conversations(record, RecordPlace(path.stem, place, self.tenant_field))
                except Odd as error:
                    raise TraceError(f"{path}, {place}: {error}; {KNOWN}.") from None

    def _lines(self, path: Path, stream: _Text) -> Iterator[Located]:
        broken: tuple[int, json.JSONDecodeError] | None = None
        for number, line in filter(itemgetter(1), enumerate(stream.lines(), 1)):  # empty ones may be millions
            if line.isspace():
                continue
            if broken:  # more follows, so it was not truncated at the end
                raise _not_json(path, f"line {broken[0]}", broken[1])
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                broken = number, error
                continue
            except (RecursionError, ValueError):
                raise TraceError(f"{path}, line {number}: nested too deeply, or a number too long.") from None
            yield (value, f"line {number}")
        if broken and broken[0] == 1:
            raise _not_json(path, "line 1", broken[1])
        if broken:
            self.torn.append(f"{path}, line {broken[0]}")

    def _elements(self, path: Path, stream: _Text) -> Iterator[Located]:
        """The elements of a JSON list, one after another, without holding much more than one in memory."""
        decoder, buffer, at, number = json.JSONDecoder(), stream.read(CHUNK), 0, 0
        at = buffer.index("[") + 1
        while True:
            at = BETWEEN.match(buffer, at).end()  # type: ignore[union-attr]  # it also matches the empty string
            if buffer.startswith("]", at):
                return
            try:
                value, end = decoder.raw_decode(buffer, at)
                problem = None
            except json.JSONDecodeError as error:
                value, end, problem = None, at, error
            except (RecursionError, ValueError):
                raise TraceError(f"{path}, record {number + 1}: nested too deeply, or a number too long.") from None
            if problem is None and (end < len(buffer) or buffer[end - 1] in "]}"):  # a number may continue
                at, number = end, number + 1
                yield (value, f"record {number}")
                continue
            if len(buffer) - at > RECORD:
                raise TraceError(f"{path}, record {number + 1}: it has more than {RECORD:,} characters.")
            if problem is not None and problem.pos < len(buffer) - HALF and not _cut_off(problem, buffer):
                raise _not_json(path, f"record {number + 1}", problem)  # more text will not complete it
            more = stream.read(max(CHUNK, len(buffer) - at))  # doubling, so that a long record is not parsed too often
            if not more:
                if problem is not None and not _cut_off(problem, buffer):
                    raise _not_json(path, f"record {number + 1}", problem)
                self.torn.append(f"{path}, record {number + 1}")
                return
            buffer, at = buffer[at:] + more, 0

    def _whole(self, path: Path, stream: _Text) -> Iterator[Located]:
        text = stream.read(HEAD) + stream.read(RECORD)
        if len(text) > RECORD:
            raise TraceError(f"{path}: one document of more than {RECORD:,} characters; write a record a line.")
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise _not_json(path, f"line {error.lineno}", error) from None
        except (RecursionError, ValueError):
            raise TraceError(f"{path}: nested too deeply, or a number too long.") from None
        yield (value, "record 1")


class _Unpacked(io.BufferedIOBase):
    """Decompresses a file, up to a limit against zip bombs."""

    def __init__(self, path: Path, packed: gzip.GzipFile, most: int) -> None:
        self._path, self._packed, self._left = path, packed, most

    def readable(self) -> bool:
        """True, which TextIOWrapper requires."""
        return True

    def read1(self, size: int | None = -1, /) -> bytes:
        """The next bytes; a TraceError once there are too many."""
        data = self._packed.read1(size if size is not None and 0 <= size <= CHUNK else CHUNK)
        self._left -= len(data)
        if self._left < 0:
            raise TraceError(f"{self._path}: it unpacks to more than {RATIO} times its size; nothing recorded does.")
        return data

    read = read1


class _Text:
    """The text of a file, decompressed if necessary, whose beginning can be peeked at."""

    def __init__(self, path: Path, raw: IO[bytes]) -> None:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        self.path, self.cut = path, False  # cut: compressed data ended too early
        size = os.fstat(raw.fileno()).st_size
        binary: Any = _Unpacked(path, gzip.GzipFile(fileobj=raw), max(FREE, RATIO * size)) if packed else raw
        self._file = io.TextIOWrapper(binary, encoding="utf-8-sig", newline="\n")
        self._head = ""

    def peek(self, size: int) -> str:
        """The beginning of the text, which `read` then returns again."""
        self._head = self.read(size)
        return self._head

    def read(self, size: int = -1) -> str:
        """The next characters; empty at the end."""
        if self._head:
            text, self._head = (self._head, "") if size < 0 else (self._head[:size], self._head[size:])
            return text + self.read() if size < 0 else text
        try:
            return self._file.read(size)
        except EOFError:
            self.cut = True
            return ""
        except UnicodeDecodeError as error:
            raise TraceError(f"{self.path}: not UTF-8 text (byte {error.object[error.start]:#x}).") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise TraceError(f"{self.path}: the compressed data is damaged ({error}).") from None

    def lines(self) -> Iterator[str]:
        """The lines without their line breaks, including a last one that has none."""
        parts: list[str] = []  # of an incomplete line, joined only once, however long it is
        while block := self.read(CHUNK):
            first, *others = block.split("\n")
            parts.append(first)
            if others:
                yield "".join(parts)
                yield from others[:-1]
                parts = others[-1:]
            elif sum(map(len, parts)) > RECORD:
                raise TraceError(f"{self.path}: a line has more than {RECORD:,} characters.")
        if rest := "".join(parts):
            yield rest


def _kind(head: str, plain: bool) -> str:
    """The format of a file, inferred from its beginning."""
    start = head.lstrip()
    if start.startswith("{"):
        try:
            json.loads(start.partition("\n")[0])
            return "JSON lines"
        except (ValueError, RecursionError):
            # The second line of a multi-line document does not begin a record.
            rest = start.partition("\n")[2]
            return "JSON lines" if not rest or rest.lstrip().startswith("{") else "JSON"
    if start.startswith("[") and start[1:].lstrip()[:1] in ("{", "]", "["):
        return "JSON list"
    if REQUEST.search(head):
        return "vLLM log"
    return "text" if plain and start else "unknown"


def _cut_off(error: json.JSONDecodeError, buffer: str) -> bool:
    """Whether a value is invalid because its end is missing."""
    return error.pos >= len(buffer.rstrip()) or error.msg.startswith("Unterminated")


def _not_json(path: Path, where: str, error: json.JSONDecodeError) -> TraceError:
    return TraceError(f"{path}, {where}: not JSON ({error.msg} at character {error.colno}).")
