"""Which part of a model each rank has: attention heads, lines of matrices, tokens of the vocabulary.

Shares are contiguous and as even as whole units allow; they need not be of the same size. Heads are divided by groups
that share a key-value head ("key"), so that a rank keeps the keys of its own groups alone; where there are more ranks
than keys, several ranks keep the same key and divide the query heads that read it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

WORDS = 64  # tokens of the vocabulary in a unit: the block that sampling reads, and whole words of grammars' masks


class HeadShare(NamedTuple):
    """The attention heads of one rank: first and one past the last."""

    queries: tuple[int, int]
    keys: tuple[int, int]


def edges(count: int, size: int, unit: int = 1) -> list[int]:
    """Where the shares of `size` ranks begin and end: size + 1 numbers from 0 to `count`, in whole units."""
    units = -(-count // unit)
    return [min(count, units * rank // size * unit) for rank in range(size + 1)]


def widths(count: int, size: int, unit: int = 1) -> list[int]:
    """The size of each rank's share."""
    return [last - first for first, last in pairwise(edges(count, size, unit))]


def share(count: int, rank: int, size: int, unit: int = 1) -> tuple[int, int]:
    """One rank's share: first and one past the last."""
    bounds = edges(count, size, unit)
    return bounds[rank], bounds[rank + 1]


def fits(heads: int, kv_heads: int, size: int) -> bool:
    """Whether `size` ranks can divide these heads."""
    if size <= kv_heads:
        return True
    return heads % size == 0 and size % kv_heads == 0


def head_share(heads: int, kv_heads: int, rank: int, size: int) -> HeadShare:
    """One rank's heads; `fits` must hold."""
    group = heads // kv_heads
    if size <= kv_heads:
        first, last = share(kv_heads, rank, size)
        return HeadShare((first * group, last * group), (first, last))
    each, key = heads // size, rank * kv_heads // size
    return HeadShare((rank * each, (rank + 1) * each), (key, key + 1))


def head_widths(heads: int, kv_heads: int, size: int) -> list[int]:
    """The number of query heads of each rank."""
    spans = [head_share(heads, kv_heads, rank, size).queries for rank in range(size)]
    return [last - first for first, last in spans]


def sizes_that_fit(heads: int, kv_heads: int) -> list[int]:
    """Every number of ranks that can divide these heads."""
    return [size for size in range(1, heads + 1) if fits(heads, kv_heads, size)]
