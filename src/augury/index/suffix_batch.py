"""A whole step of the suffix index in one compiled call: new tokens of every request, then a draft for each."""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.index.suffix_draft import PARENTS, TAIL, TOKENS, Desk, Wish, draft, occurrences, read_tail
from augury.index.suffix_grow import append
from augury.index.suffix_layout import (
    BLOCK,
    BLOCKS_USED,
    FEW,
    INLINE,
    LENGTH,
    LIMIT,
    NODES_USED,
    NONE,
    OPTIONS,
    TABLE_USED,
    Arrays,
)

# The book has a line [OWN, SHARED, TREE, PROMPT] for every active request: its sequence in its own tree and in the
# tenant's tree (NONE if it has none there), the root of the tenant's tree, and how long its prompt is.
OWN, SHARED, TREE, PROMPT = range(4)
DONE, NO_ROOM, BAD_TOKEN, TOO_SHORT = range(4)  # how a call ended; all but DONE have changed nothing
HIGHEST = 2**31 - 1  # token ids are int32


@njit(**INLINE)
def fits(a: Arrays, tokens: int, sequences: int) -> bool:
    """Whether this many tokens in this many sequences fit in the worst case.

    A token adds one place and, with the suffixes that were waiting at nodes, at most a node each and a kid each.
    """
    suffixes = tokens + sequences * a.counters[LIMIT]
    if len(a.nodes) - a.counters[NODES_USED] < 2 * suffixes + 8:
        return False
    if len(a.blocks) - a.counters[BLOCKS_USED] < tokens // BLOCK + 2 * sequences:
        return False
    return 4 * (a.counters[TABLE_USED] + (FEW + 1) * suffixes) <= 3 * len(a.table)


# Entry points take the arrays one by one: passing a tuple to numba takes twice as long.


@njit(**OPTIONS)
def has_room(nodes, places, blocks, sequences, table, counters, tokens, count):  # type: ignore[no-untyped-def]
    """`fits`, for callers outside compiled code."""
    return fits(Arrays(nodes, places, blocks, sequences, table, counters), tokens, count)


@njit(**OPTIONS)
def extend(nodes, places, blocks, sequences, table, counters, own, shared, tokens):  # type: ignore[no-untyped-def]
    """Append tokens to one or two sequences (NONE is skipped); False, and nothing done, if there is no room."""
    a = Arrays(nodes, places, blocks, sequences, table, counters)
    count = (own >= 0) + (shared >= 0)
    if not fits(a, count * len(tokens), count):
        return False
    for sequence in (own, shared):
        if sequence >= 0:
            append(a, sequence, tokens)
    return True


@njit(**OPTIONS)
def count_in(nodes, places, blocks, sequences, table, counters, root, tokens):  # type: ignore[no-untyped-def]
    """`occurrences`, for callers outside compiled code."""
    return occurrences(Arrays(nodes, places, blocks, sequences, table, counters), root, tokens)


@njit(**OPTIONS)
def first_bad(ids: np.ndarray) -> int:
    """The index of the first id that does not fit 32 bits, or NONE."""
    for i in range(len(ids)):
        if ids[i] < 0 or ids[i] > HIGHEST:
            return i
    return NONE


@njit(**INLINE)
def _served(book: np.ndarray, handle: int, length: int) -> bool:
    """Whether a group's request has an index."""
    return length > 0 and handle >= 0 and book[handle, OWN] >= 0


@njit(**OPTIONS)
def _check(a: Arrays, book, handles, history, rows, lengths) -> int:  # type: ignore[no-untyped-def]
    """Whether every group's new tokens can be indexed."""
    tokens, sequences = 0, 0
    for g in range(len(handles)):
        if not _served(book, handles[g], lengths[g]):
            continue
        new = lengths[g] - a.sequences[book[handles[g], OWN], LENGTH]
        if new < 0:
            return TOO_SHORT
        if first_bad(history[rows[g], lengths[g] - new : lengths[g]]) != NONE:
            return BAD_TOKEN
        tokens += 2 * new
        sequences += 2
    return DONE if sequences == 0 or fits(a, tokens, sequences) else NO_ROOM  # a full arena may have no group to serve


@njit(**OPTIONS)
def _catch_up(a: Arrays, line: np.ndarray, text: np.ndarray, length: int) -> None:
    append(a, line[OWN], text[a.sequences[line[OWN], LENGTH] : length])
    if line[SHARED] >= 0:
        known = line[PROMPT] + a.sequences[line[SHARED], LENGTH]
        if known < length:
            append(a, line[SHARED], text[known:length])


@njit(**OPTIONS)
def serve(  # type: ignore[no-untyped-def]
    nodes,
    places,
    blocks,
    sequences,
    table,
    counters,
    book,
    handles,
    history,
    rows,
    lengths,
    budget,
    limit,
    factor,
    offset,
    least,
    width,
    tokens,
    parents,
    counts,
):
    """Index the new tokens of every group, then draft for each: fills tokens and parents [G, K] and counts [G].

    Group g, with the book's line handles[g], has the text history[rows[g], :lengths[g]]. A length of 0 or a handle
    of NONE is padding.
    """
    a = Arrays(nodes, places, blocks, sequences, table, counters)
    state = _check(a, book, handles, history, rows, lengths)
    if state != DONE:
        return state
    for g in range(len(handles)):
        if _served(book, handles[g], lengths[g]):
            _catch_up(a, book[handles[g]], history[rows[g]], lengths[g])
    most = tokens.shape[1]
    wide = max(most, counters[LIMIT]) + 1
    desk = Desk(np.empty((10, wide), np.int64), np.empty((3, wide), np.float64))
    wish = Wish(factor, offset, least, width)
    for g in range(len(handles)):
        counts[g] = 0
        if _served(book, handles[g], lengths[g]):
            line, room = book[handles[g]], min(budget[g], most, limit - lengths[g] - 1)
            tail = read_tail(a, line[OWN], desk)
            counts[g] = draft(a, line[OWN], line[TREE], line[SHARED], tail, room, wish, desk, True)[0]
            for i in range(counts[g]):
                tokens[g, i], parents[g, i] = desk.ints[TOKENS, i], desk.ints[PARENTS, i]
    return DONE


@njit(**OPTIONS)
def draft_one(  # type: ignore[no-untyped-def]
    nodes,
    places,
    blocks,
    sequences,
    table,
    counters,
    book,
    handle,
    context,
    live,
    most,
    factor,
    offset,
    least,
    width,
    ints,
    floats,
):
    """A draft for one request, continuing `context` unless `live`, left in the Desk made of `ints` and `floats`.

    Returns (tokens written, score, match length).
    """
    a, desk, line = Arrays(nodes, places, blocks, sequences, table, counters), Desk(ints, floats), book[handle]
    if live:
        tail = read_tail(a, line[OWN], desk)
    else:
        tail = min(len(context), counters[LIMIT])
        for i in range(tail):
            ints[TAIL, i] = context[len(context) - tail + i]
    wish = Wish(factor, offset, least, width)
    return draft(a, line[OWN], line[TREE], line[SHARED], tail, most, wish, desk, live)
