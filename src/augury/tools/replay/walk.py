"""Replays a recorded response as an engine would decode it, in compiled code from the first draft to the last.

A step drafts from the tokens known so far, compares the draft with the recorded tokens, and takes those that match and
the next recorded one. The first token of a response costs no step, because it comes from prefill. Draft tokens past
the end of the response are counted as rejected.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from augury.index.ngram import serve as serve_ngram
from augury.index.suffix_batch import DONE
from augury.index.suffix_batch import serve as serve_suffix

OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy"}
STEPS, DRAFTS, DRAFTED, ACCEPTED = range(4)  # columns of a response's counts
DRAFTED_AT, OFFERED_AT, ACCEPTED_AT, LENGTHS = range(4)  # rows of the curve; LENGTHS counts drafts by accepted tokens


@njit(**OPTIONS)
def settle(text, length, stop, tokens, parents, count, line, curve):  # type: ignore[no-untyped-def]
    """Judge a draft by text[length:stop] and count it; returns how many of its tokens were accepted."""
    line[STEPS] += 1
    if count == 0:
        return 0
    node, accepted, offered, depth = -1, 0, 0, 0
    depths = np.empty(count, np.int64)
    for i in range(count):  # children come after their parent, so one pass follows the whole path
        depths[i] = 1 if parents[i] < 0 else depths[parents[i]] + 1
        depth = max(depth, depths[i])
        if parents[i] == node and length + accepted < stop:
            offered = accepted + 1
            if tokens[i] == text[length + accepted]:
                node = i
                accepted += 1
    line[DRAFTS] += 1
    line[DRAFTED] += count
    line[ACCEPTED] += accepted
    curve[DRAFTED_AT, :depth] += 1
    curve[OFFERED_AT, :offered] += 1
    curve[ACCEPTED_AT, :accepted] += 1
    curve[LENGTHS, accepted] += 1
    return accepted


@njit(**OPTIONS)
def walk_ngram(index, text, start, stop, steps, limit, most, line, curve):  # type: ignore[no-untyped-def]
    """Decode text[0, start:stop] in at most `steps` steps; returns the number of tokens known then.

    `index` holds arena, state and bounds of an NgramIndex with one slot that is large enough for the whole text.
    """
    zero, lengths, counts = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    budget, tokens, parents = np.full(1, most), np.empty((1, most), np.int64), np.arange(-1, most - 1)
    length = start
    while length < stop and steps > 0:
        steps -= 1
        lengths[0] = length
        serve_ngram(text, zero, zero, lengths, budget, *index, limit, 0, tokens, counts)
        length += 1 + settle(text[0], length, stop, tokens[0], parents, counts[0], line, curve)
    return min(length, stop)


@njit(**OPTIONS)
def walk_suffix(index, rule, text, start, stop, steps, limit, most, line, curve):  # type: ignore[no-untyped-def]
    """Decode like walk_ngram with a suffix index; also returns the state: DONE, or that the index must grow.

    `index` holds the arena's arrays and a book of one row, see suffix_batch.
    """
    zero, lengths, counts = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    budget, tokens, parents = np.full(1, most), np.empty((1, most), np.int64), np.empty((1, most), np.int64)
    length = start
    while length < stop and steps > 0:
        steps -= 1
        lengths[0] = length
        state = serve_suffix(*index, zero, text, zero, lengths, budget, limit, *rule, tokens, parents, counts)
        if state != DONE:
            return length, state
        length += 1 + settle(text[0], length, stop, tokens[0], parents[0], counts[0], line, curve)
    return min(length, stop), DONE
