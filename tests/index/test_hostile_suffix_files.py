"""Suffix files whose checksum holds and whose header lies."""

from __future__ import annotations

import json
import struct
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bounded_run import run

from augury.index.store import MAGIC, SuffixFileError, load, save
from augury.index.suffix import SuffixCache


def forged(path: Path, header: Any, tokens: Any) -> Path:
    """A file whose checksum holds, whatever its header says."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    ids = np.asarray(tokens, dtype="<i4").tobytes()
    digest = blake2b(raw + ids, digest_size=16).digest()
    path.write_bytes(struct.pack("<8sIIQ16s", MAGIC, 1, len(raw), len(ids) // 4, digest) + raw + ids)
    return path


GOOD = {"depth": 24, "responses": [["", "a", 3], ["tenant", "b", 2]]}
FORGED: list[tuple[Any, Any, str]] = [
    (b"{", [1], "not JSON"),
    (b"\xff\xfe", [1], "not JSON"),
    (b"[" * 100_000, [1], "not JSON"),
    ([], [], "list of"),
    ({}, [], "list of"),
    ({"depth": 24, "responses": 3}, [], "list of"),
    ({"depth": 24, "responses": [3]}, [], "list of"),
    ({"depth": 24, "responses": [["", "a"]]}, [], "list of"),
    ({"depth": 24, "responses": [["", 1, 0]]}, [], "list of"),
    ({"depth": 24, "responses": [[None, "a", 0]]}, [], "list of"),
    ({"depth": 24, "responses": [["", "a", -1]]}, [], "list of"),
    ({"depth": 24, "responses": [["", [], 1]]}, [1], "list of"),
    ({"depth": 24, "responses": [["", "a", 1.0]]}, [1], "list of"),
    ({"depth": 24, "responses": [["", "a", True]]}, [1], "list of"),
    ({**GOOD, "depth": "24"}, range(5), "depth"),
    ({**GOOD, "depth": 0}, range(5), "depth"),
    ({**GOOD, "depth": 10**9}, range(5), "depth"),
    ({**GOOD, "depth": None}, range(5), "depth"),
    (GOOD, range(4), "4 tokens"),
    (GOOD, range(6), "6 tokens"),
    ({"depth": 24, "responses": [["", "a", 10**400]]}, [1], "1 tokens"),
    (GOOD, [1, 2, -3, 4, 5], "negative"),
    ({"depth": 24, "responses": [["", "a", 1], ["", "a", 1]]}, [1, 2], "same name"),
]


@pytest.mark.parametrize(("header", "tokens", "says"), FORGED, ids=range(len(FORGED)))
def test_forged_headers(tmp_path: Path, header: Any, tokens: Any, says: str) -> None:
    path = forged(tmp_path / "x.suffix", header, list(tokens))
    with pytest.raises(SuffixFileError, match=says):
        load(path)
    code, said = run("suffix", "show", str(path))
    assert code == 2 and says in said and said.count("\n") == 1


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    cache = load(forged(tmp_path / "x.suffix", GOOD, [1, 2, 3, 4, 5]))
    assert [(tenant, name, ids.tolist()) for tenant, name, ids in cache.responses()] == [
        ("", "a", [1, 2, 3]),
        ("tenant", "b", [4, 5]),
    ]
    save(cache, tmp_path / "y.suffix")
    assert load(tmp_path / "y.suffix").max_depth == 24 and isinstance(cache, SuffixCache)


def test_a_size_that_is_only_promised(tmp_path: Path) -> None:
    """Nothing is read, and no memory taken, for bytes that are not there."""
    path = tmp_path / "x.suffix"
    path.write_bytes(struct.pack("<8sIIQ16s", MAGIC, 1, 2**32 - 1, 2**61, b"\0" * 16))
    with pytest.raises(SuffixFileError, match="probably truncated"):
        load(path)
