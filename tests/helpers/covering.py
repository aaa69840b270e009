"""A few rows of parameters in place of all of them: every two values still meet.

A fault needs one value, or two that meet, far more often than three; where a test's parameters have nothing to do with
each other by threes, rows in which every PAIR of values occurs find what their full product finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

Row = tuple[Any, ...]


def covering(*values: Sequence[Any]) -> list[Row]:
    """Rows of one value each: every two values of different parameters occur in one. The same rows for the same lists.

    Of all possible rows that with the most pairs not seen yet is taken, the first of equals, until none is left.
    """
    sizes = [range(len(each)) for each in values]
    left = {pair for places in product(*sizes) for pair in _pairs(places)}
    rows: list[Row] = []
    while left:
        best = max(product(*sizes), key=lambda places: sum(pair in left for pair in _pairs(places)))
        left.difference_update(_pairs(best))
        rows.append(tuple(each[place] for each, place in zip(values, best, strict=True)))
    return rows


def _pairs(places: Iterable[int]) -> list[tuple[tuple[int, int], ...]]:
    return list(combinations(enumerate(places), 2))
