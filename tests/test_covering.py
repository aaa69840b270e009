"""Rows that stand for a full product hold every pair of its values, and are few."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from covering import covering

METHODS = ["eagle", "eagle3", "medusa", "ngram"]


@pytest.mark.parametrize(
    ("values", "most"),
    [
        ([METHODS, [0.0, 0.7], ["chain", "tree"]], 8),
        ([[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3]], 12),  # of 81; nine is the least there can be
        ([[{}, {"block_size": 4}], [None, {}], range(5)], 11),  # values need not be hashable
        ([METHODS, [True, False]], 8),  # of two parameters all rows
    ],
)
def test_every_pair_occurs(values: list[list[object]], most: int) -> None:
    rows = covering(*values)
    assert len(rows) <= most and rows == covering(*values)
    assert all(value in each for row in rows for value, each in zip(row, values, strict=True))
    for (i, ones), (j, others) in combinations(enumerate(values), 2):
        for pair in product(ones, others):
            assert any((row[i], row[j]) == pair for row in rows), pair
