"""The most frequent token runs of a corpus."""

from __future__ import annotations

import numpy as np

FACTOR = np.uint64(11400714819323198485)


def frequent_runs(texts: list[np.ndarray], length: int, most: int) -> list[tuple[list[int], int]]:
    """The most frequent runs of `length` tokens with their counts, without shifted copies of one another."""
    keys = np.concatenate([np.empty(0, np.uint64), *(_keys(text, length) for text in texts)])
    if not len(keys):
        return []
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    starts = np.cumsum([0, *(max(0, len(text) - length + 1) for text in texts)])
    found: list[tuple[list[int], int]] = []
    for i in np.argsort(-counts, kind="stable").tolist():
        if counts[i] < 2 or len(found) == most:
            break
        text = int(np.searchsorted(starts, first[i], side="right")) - 1
        at = int(first[i] - starts[text])
        run = [int(token) for token in texts[text][at : at + length]]
        if not any(_shifted(run, other) for other, _ in found):
            found.append((run, int(counts[i])))
    return found


def _keys(text: np.ndarray, length: int) -> np.ndarray:
    """A hash for every run of `length` tokens in a text, uint64."""
    if len(text) < length:
        return np.empty(0, np.uint64)
    ids = text.astype(np.uint64)
    keys = np.zeros(len(ids) - length + 1, np.uint64)
    for i in range(length):
        keys = (keys ^ ids[i : len(ids) - length + 1 + i]) * FACTOR
        keys ^= keys >> np.uint64(29)
    return keys


def _shifted(run: list[int], other: list[int]) -> bool:
    """Whether two runs are the same tokens shifted by at most half their length."""
    half = len(run) // 2
    return any(run[i:] == other[: len(other) - i] or other[i:] == run[: len(run) - i] for i in range(half + 1))
