"""Traces that are bombs: bounded memory, one clear error."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bounded_run import bounded, one_error
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.tools.replay import traces
from augury.tools.replay.traces import TraceError, TraceReader


def bomb(path: Path, piece: bytes, count: int, head: bytes = b"", tail: bytes = b"") -> Path:
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(head)
        for _ in range(count):
            file.write(piece)
        file.write(tail)
    return path


def read_all(path: Path) -> list[Any]:
    return list(TraceReader([path], plain=True))


RECORD = b'{"prompt": "a", "completion": "b"}\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "piece"),
    [(RECORD, b"x" * (1 << 20)), (RECORD, b"\n" * (1 << 20)), (b"[" + RECORD[:-1], b"," * (1 << 20))],
    ids=["one line", "empty lines", "commas"],
)
def test_a_bomb_is_refused_in_bounded_memory(tmp_path: Path, head: bytes, piece: bytes) -> None:
    """Gigabytes out of megabytes would take minutes: it ends at 250 times its size, or at a line that is too long."""
    path = bomb(tmp_path / "x.jsonl.gz", piece, 100, head)
    one_error(bounded("replay", str(path), "--tokenizer", "bytes", megabytes=1500), "x.jsonl.gz", "more than")


def test_text_out_of_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "FREE", 100_000)
    path = bomb(tmp_path / "x.gz", b"\n" * 10_000, 200, RECORD)
    with pytest.raises(TraceError, match="more than 250 times its size"):
        read_all(path)
    sparse = bomb(tmp_path / "y.gz", b"\n" * 1000, 90, RECORD)  # as much out of proportion, but small
    assert len(read_all(sparse)) == 1


def test_a_line_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pieces are put together once: characters copied are counted by what is read, not by the square of it."""
    monkeypatch.setattr(traces, "RECORD", 1 << 20)
    monkeypatch.setattr(traces, "CHUNK", 1 << 10)
    path = tmp_path / "x.jsonl"
    path.write_text(RECORD.decode() + "x" * (3 << 20))
    with pytest.raises(TraceError, match="a line has more than 1,048,576 characters"):
        read_all(path)


@given(st.lists(st.text(alphabet="ab \n", max_size=30), max_size=8), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_lines_are_those_of_the_text(parts: list[str], chunk: int) -> None:
    text = "\n".join(parts)

    class Given(traces._Text):
        def __init__(self) -> None:
            self._rest, self.path = text, Path("x")

        def read(self, size: int = -1) -> str:
            piece, self._rest = self._rest[:chunk], self._rest[chunk:]
            return piece

    want = text.split("\n")
    assert list(Given().lines()) == (want if want[-1] else want[:-1])


def test_a_record_or_a_document_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "RECORD", 100_000)
    monkeypatch.setattr(traces, "CHUNK", 1 << 12)
    path = tmp_path / "x.json"
    path.write_text('[{"prompt": "' + "x" * 500_000 + '"}]')
    with pytest.raises(TraceError, match=r"record 1: it has more than 100,000 characters"):
        read_all(path)
    path.write_text('{\n"data": [' + "1," * 100_000 + "1]}")
    with pytest.raises(TraceError, match="one document of more than 100,000 characters"):
        read_all(path)


def test_what_is_no_json_is_told_before_the_rest_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "CHUNK", 1 << 12)
    path = tmp_path / "x.json"
    path.write_text('[{"prompt": "a", "completion": "b"}, {"prompt": nonsense' + " " * 1_000_000)
    read = count_reads(monkeypatch)
    with pytest.raises(TraceError, match="record 2: not JSON"):
        read_all(path)
    assert sum(read()) < 200_000


def count_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    sizes: list[int] = []
    real = traces._Text.read

    def counted(self: Any, size: int = -1) -> str:
        text = real(self, size)
        sizes.append(len(text))
        return text

    monkeypatch.setattr(traces._Text, "read", counted)
    return lambda: sizes


@pytest.mark.parametrize("chunk", range(1, 60))
def test_a_list_in_small_pieces_is_the_same_list(chunk: int) -> None:
    """Wherever a piece ends, in a number, a name or an escape: no record is lost, and none is called broken."""
    records = [{"prompt": 'é\\"x', "completion": "ab\u2028", "n": -12.5e3, "flag": [True, None, False]}] * 3
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(traces, "CHUNK", chunk)
        reader = object.__new__(TraceReader)
        reader.torn = []
        stream: Any = Pieces(json.dumps(records))
        found = [value for value, _ in reader._elements(Path("x"), stream)]
    assert found == records and not reader.torn


class Pieces:
    """A text that is read in pieces."""

    def __init__(self, text: str) -> None:
        self.parts: Iterator[str] = iter(text)

    def read(self, size: int = -1) -> str:
        """The next characters."""
        return "".join(sign for _, sign in zip(range(size), self.parts, strict=False))
