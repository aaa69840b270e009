"""n-gram lookup: the longest ending of a text that also stands earlier in it, and what followed it there.

The rule is vLLM V1's: the longest n between min_n and max_n, of several places the earliest; the match may overlap the
ending but must stop before the last token.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def find(tokens: np.ndarray, length: int, min_n: int, max_n: int) -> int:
    """Where the continuation of the longest match begins, or `length` if there is none.

    The text is read backwards, so that its ending is a prefix and a Knuth-Morris-Pratt table applies. Every place is
    visited once and a later visit is an earlier place; the table need not go past max_n. O(length) in all.
    """
    last = length - 1
    table = np.zeros(max(max_n, 1), np.int64)  # of each prefix of the reversed text, its longest border
    longest, place, matched = 0, 0, 0
    for i in range(1, length):
        while matched > 0 and tokens[last - matched] != tokens[last - i]:
            matched = table[matched - 1]
        if tokens[last - matched] == tokens[last - i]:
            matched += 1
        if matched > 0 and matched >= longest:
            longest, place = matched, i
        if i < max_n:
            table[i] = matched
        if matched == max_n:
            matched = table[max_n - 1]
    return last - place + longest if longest >= max(min_n, 1) else length


@njit(cache=True, nogil=True)
def longest_match(tokens: np.ndarray, length: int, min_n: int, max_n: int, k: int, limit: int) -> np.ndarray:
    """Up to k guesses for what follows tokens[:length], in a text that may not grow past `limit` tokens."""
    k = min(k, limit - length)
    if k <= 0:
        return tokens[:0]
    start = find(tokens, length, min_n, max_n)
    return tokens[start : min(start + k, length)]


@njit(cache=True, nogil=True)
def longest_matches(
    history: np.ndarray, slots: np.ndarray, lengths: np.ndarray, budget: np.ndarray,
    min_n: int, max_n: int, limit: int, tokens: np.ndarray, counts: np.ndarray,
) -> None:  # fmt: skip
    """longest_match for row slots[g] of `history` and up to budget[g] guesses; fills tokens [G, K] and counts [G]."""
    for g in range(len(slots)):
        most = min(budget[g], tokens.shape[1])
        found = longest_match(history[slots[g]], lengths[g], min_n, max_n, most, limit)
        counts[g] = len(found)
        for i in range(len(found)):  # a slice assignment would take seconds to compile
            tokens[g, i] = found[i]
