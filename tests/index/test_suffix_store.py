"""A suffix cache on disk: equal after a round trip, refused when damaged, never half-written."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suffix_oracle import SlowCache, occurrences

from augury.index import store
from augury.index.store import SuffixFileError, load, save
from augury.index.suffix import SuffixCache

ALPHABET = 3


def sample() -> SuffixCache:
    cache = SuffixCache(max_depth=6)
    for i in range(12):
        cache.add(f"r{i}", np.random.default_rng(i).integers(0, ALPHABET, 5 * i), tenant="xy"[i % 2])
    return cache


def drafts(cache: SuffixCache, tenant: str) -> list[object]:
    """What a cache would say to every short context."""
    cache.start("probe", [], tenant)
    contexts = [list(c) for n in (2, 4) for c in product(range(ALPHABET), repeat=n)]
    said: list[object] = [cache.speculate("probe", c, tree=tree) for c in contexts for tree in (False, True)]
    cache.stop("probe")
    cache.evict("probe")
    return said


def test_round_trip(tmp_path: Path) -> None:
    cache, path = sample(), tmp_path / "cache"
    assert save(cache, path) == path.stat().st_size
    again = load(path)
    assert again.max_depth == 6
    assert again.cached == cache.cached
    for tenant in "xy":
        assert drafts(again, tenant) == drafts(cache, tenant)
    assert os.listdir(tmp_path) == ["cache"]


def test_limits_may_change_on_loading(tmp_path: Path) -> None:
    save(sample(), tmp_path / "cache")
    assert load(tmp_path / "cache", max_depth=3, max_requests=2).cached == ["r10", "r11"]
    assert load(tmp_path / "cache", max_requests=-1).cached == [f"r{i}" for i in range(12)]
    assert load(tmp_path / "cache", max_requests=0).cached == []


def test_an_empty_cache_and_odd_names(tmp_path: Path) -> None:
    cache = SuffixCache()
    save(cache, tmp_path / "cache")
    assert load(tmp_path / "cache").cached == []
    cache.add('"é\n', [2**31 - 1, 0], tenant="ten\0ant")
    save(cache, tmp_path / "cache")
    (tenant, name, tokens), *_ = load(tmp_path / "cache").responses()
    assert (tenant, name, tokens.tolist()) == ("ten\0ant", '"é\n', [2**31 - 1, 0])


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    operations=st.lists(
        st.one_of(
            st.tuples(st.just("run"), st.lists(st.integers(0, ALPHABET - 1), max_size=20)),
            st.tuples(st.just("evict"), st.integers(0, 9)),
            st.tuples(st.just("reload"), st.just(0)),
        ),
        max_size=12,
    )
)
def test_saving_loading_and_evicting_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, object]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-order"
    cache, slow = SuffixCache(4, 5), SlowCache(4, 5)
    for i, (kind, value) in enumerate(operations):
        if kind == "run":
            for one in (cache, slow):
                one.start(f"r{i}", [0], "")
                one.append(f"r{i}", value)  # type: ignore[arg-type]
                one.stop(f"r{i}")
        elif kind == "evict" and slow.cached:
            name = list(slow.cached)[value % len(slow.cached)]  # type: ignore[operator]
            cache.evict(name)
            slow.evict(name)
        elif kind == "reload":
            save(cache, path)
            cache = load(path, max_requests=5)
        assert cache.cached == list(slow.cached)
        texts = slow.shared("")
        for string in product(range(ALPHABET), repeat=3):
            assert cache.count(list(string)) == len(occurrences(texts, list(string)))
        cache.start("probe", [])
        slow.active["probe"] = [], ""
        for context in ([0, 1], [1, 2, 0], [2, 2]):
            found, wanted = cache.speculate("probe", context), slow.speculate("probe", context, 4, 1.0, 0.0, 0.1, 1)
            assert (found.tokens, found.match_len) == (wanted.tokens, wanted.match_len)
        cache.stop("probe")
        cache.evict("probe")
        while len(cache.cached) < len(slow.cached):  # the probe may have pushed the oldest out
            slow.evict(next(iter(slow.cached)))


def damaged(data: bytes) -> list[tuple[str, bytes]]:
    """(what is wrong, the bytes) in every way a file goes bad."""
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    header = bytearray(data)
    header[60] ^= 1
    return [
        ("not a suffix cache", b""),
        ("not a suffix cache", b"PK\3\4" + data[4:]),
        ("not a suffix cache", data[:20]),
        ("truncated", data[: len(data) // 2]),
        ("truncated", data[:-1]),
        ("truncated", data + b"\0"),
        ("checksum", bytes(flipped)),
        ("checksum", bytes(header)),
        ("version 7", data[:8] + b"\7\0\0\0" + data[12:]),
    ]


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    save(sample(), path)
    for words, data in damaged(path.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(SuffixFileError, match=words) as caught:
            load(path)
        assert str(path) in str(caught.value)
        assert "augury suffix build" in str(caught.value)
        assert isinstance(caught.value, ValueError)
        save(sample(), path)  # the caller may rebuild at once
        assert len(load(path).cached) == 12
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache"
    save(sample(), path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        save(SuffixCache(), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["cache"]
