"""Drafting from suffix trees: which continuation of the last m tokens promises the most accepted tokens.

For every m whose last m tokens are found in a tree, walk on from there for up to budget(m) tokens: along the most
frequent kids (a path), or taking the most probable token anywhere next (a tree). A token's probability is the product
of count(kid) / count(node) on the way to it, a draft's score the sum of them. The best score wins; between equals the
longer match, then the request's own tree. Of equally frequent kids the least recently seen goes first:
more text follows it (and it measured slightly better).

A score is at most its budget, so after the longest match most of the others need no walk.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from augury.index.suffix_grow import ends_at
from augury.index.suffix_kids import find_kid
from augury.index.suffix_layout import (
    AFTER,
    BLOCK,
    COUNT,
    HEAD,
    HEAVY,
    INLINE,
    LAST,
    LEAVES,
    LENGTH,
    LIMIT,
    NEXT,
    NO_KID,
    NONE,
    OPTIONS,
    ROOT,
    SHIFT,
    TOKEN,
    Arrays,
    ahead,
    behind,
    bottom_of,
    newer,
    size_of,
    start_of,
)

SAME = 1e-9  # scores and probabilities closer than this are equal, whatever the rounding


class Wish(NamedTuple):
    """The parameters of a draft; see SuffixRule."""

    factor: float  # tokens per matched token
    offset: float
    least: float  # no token less probable than this
    width: int  # most kids per node; 1 is a path


class Desk(NamedTuple):
    """Scratch space of a drafting call, and its result; few arrays, because passing each one costs time."""

    ints: np.ndarray  # int64 [10, W]
    floats: np.ndarray  # float64 [3, W]


# Rows of a desk: the best draft so far, the one being tried, kids of a node best first, the points where a tree may
# grow most probable first, where the last m tokens are found, and the last tokens themselves.
TOKENS, PARENTS, TRY_TOKENS, TRY_PARENTS, RANKED, OPEN_PARENT, OPEN_KID, OPEN_DEPTH, FOUND, TAIL = range(10)
PROBS, TRY_PROBS, OPEN_PROB = range(3)


@njit(**INLINE)
def _last_place(a: Arrays, sequence: int) -> int:
    return (np.int64(a.sequences[sequence, LAST]) << SHIFT) | ((a.sequences[sequence, LENGTH] - 1) & (BLOCK - 1))


@njit(**INLINE)
def read_tail(a: Arrays, sequence: int, desk: Desk) -> int:
    """Copy a sequence's last tokens to the desk, at most the depth limit; returns how many."""
    count = min(a.sequences[sequence, LENGTH], a.counters[LIMIT])
    if count > 0:
        place = behind(a, _last_place(a, sequence), count - 1)
        for i in range(count):
            if i > 0:
                place = ahead(a, place, 1)
            desk.ints[TAIL, i] = a.places[place, TOKEN]
    return count


@njit(**INLINE)
def _descend(a: Arrays, root: int, tail: np.ndarray, start: int, stop: int) -> int:
    """The kid on whose edge tail[start:stop] ends, or NO_KID if it is not in the tree."""
    node, depth, length = root, 0, stop - start
    while True:
        kid = find_kid(a, node, tail[start + depth])
        if kid == NO_KID:
            return NO_KID
        bottom = min(bottom_of(a, kid), length)
        place = ahead(a, start_of(a, kid), depth)
        while depth < bottom:
            if a.places[place, TOKEN] != tail[start + depth]:
                return NO_KID
            depth += 1
            if depth < bottom:
                place = ahead(a, place, 1)
        if depth == length:
            return kid
        if kid < 0 or bottom_of(a, kid) > depth:
            return NO_KID
        node = kid


@njit(**OPTIONS)
def occurrences(a: Arrays, root: int, tokens: np.ndarray) -> int:
    """How often a string, no longer than the depth limit, occurs in a tree."""
    kid = _descend(a, root, tokens, 0, len(tokens))
    return 0 if kid == NO_KID else size_of(a, kid)


@njit(**INLINE)
def _matches(a: Arrays, root: int, sequence: int, desk: Desk, count: int) -> int:
    """Fill row FOUND with the kid on which the last m tokens end, for m = 1, 2, ... while there is one.

    If `sequence` is given, it is in the tree and ends as the tail does: up to its own length its nodes are known.
    Beyond that, each m is looked up.
    """
    m, known = 1, 0
    if sequence >= 0 and a.sequences[sequence, LENGTH] > 0:
        last = _last_place(a, sequence)
        known = min(a.sequences[sequence, LENGTH], count - 1)
        while m <= known:
            node = ends_at(a, last, m)
            if node == NONE:  # only the sequence itself
                return m - 1
            desk.ints[FOUND, m] = node
            m += 1
    while m < count:
        kid = _descend(a, root, desk.ints[TAIL], count - m, count)
        if kid == NO_KID:
            break
        desk.ints[FOUND, m] = kid
        m += 1
    return m - 1


@njit(**INLINE)
def _goes_before(a: Arrays, size: int, start: int, other: int) -> bool:
    """Whether a kid of that size that was last seen at `start` ranks before another."""
    others = size_of(a, other)
    return size > others or (size == others and newer(a, start_of(a, other), start))


@njit(**INLINE)
def _rank_kids(a: Arrays, node: int, fewest: float, width: int, desk: Desk) -> int:
    """The up to `width` most frequent kids that occur at least `fewest` times, best first."""
    out, count = desk.ints, 0
    ordered = fewest * (HEAVY // 2) >= a.nodes[node, COUNT]  # then all that are needed are in order
    at, leaves = np.int64(a.nodes[node, HEAD]), False
    while True:
        if at < 0:
            if leaves or count == width or fewest > 1:  # a leaf occurs once, an inner kid more often
                return count
            at, leaves = np.int64(a.nodes[node, LEAVES]), True
            continue
        kid = ~at if leaves else at
        size, start = size_of(a, kid), start_of(a, kid)
        if ordered and (size < fewest or (count == width and size < size_of(a, out[RANKED, count - 1]))):
            return count  # what follows is no more frequent
        i = count if size >= fewest else width
        while 0 < i <= count and _goes_before(a, size, start, out[RANKED, i - 1]):
            i -= 1
        if i < width:
            count = min(count + 1, width)
            for j in range(count - 1, i, -1):
                out[RANKED, j] = out[RANKED, j - 1]
            out[RANKED, i] = kid
        at = np.int64(a.places[at, AFTER] if leaves else a.nodes[at, NEXT])


@njit(**INLINE)
def _write(a: Arrays, desk: Desk, count: int, place: int, parent: int, prob: float) -> None:
    desk.ints[TRY_TOKENS, count] = a.places[place, TOKEN]
    desk.ints[TRY_PARENTS, count] = parent
    desk.floats[TRY_PROBS, count] = prob


@njit(**INLINE)
def _follow(a: Arrays, kid: int, depth: int, most: int, wish: Wish, bar: float, desk: Desk):
    """Walk along the most frequent kids; returns (tokens written, score), (0, 0) if `bar` is out of reach."""
    prob, score, count = 1.0, 0.0, 0
    while True:
        bottom = bottom_of(a, kid)
        if depth < bottom:
            place = ahead(a, start_of(a, kid), depth)
            while depth < bottom and count < most:
                _write(a, desk, count, place, count - 1, prob)
                score += prob
                count += 1
                depth += 1
                if depth < bottom:
                    place = ahead(a, place, 1)
        if kid < 0 or count == most:
            return count, score
        total = a.nodes[kid, COUNT]
        if _rank_kids(a, kid, (wish.least - SAME) * total / prob, 1, desk) == 0:
            return count, score
        kid = desk.ints[RANKED, 0]
        prob *= size_of(a, kid) / total
        if score + prob * (most - count) <= bar + SAME:
            return 0, 0.0


@njit(**INLINE)
def _move(desk: Desk, source: int, target: int) -> None:
    desk.floats[OPEN_PROB, target] = desk.floats[OPEN_PROB, source]
    for line in (OPEN_PARENT, OPEN_KID, OPEN_DEPTH):
        desk.ints[line, target] = desk.ints[line, source]


@njit(**INLINE)
def _offer(desk: Desk, points: int, most: int, prob: float, parent: int, kid: int, depth: int) -> int:
    """Add a point where the tree may grow, keeping only the best `most`; best first, equals in order of arrival."""
    i = points
    while i > 0 and desk.floats[OPEN_PROB, i - 1] < prob:
        i -= 1
    if i >= most:
        return points
    points = min(points + 1, most)
    for j in range(points - 1, i, -1):
        _move(desk, j - 1, j)
    desk.floats[OPEN_PROB, i] = prob
    desk.ints[OPEN_PARENT, i], desk.ints[OPEN_KID, i], desk.ints[OPEN_DEPTH, i] = parent, kid, depth
    return points


@njit(**INLINE)
def _spread(a: Arrays, kid: int, depth: int, most: int, wish: Wish, bar: float, desk: Desk):
    """Take the most probable next token anywhere in the tree, again and again; returns (tokens written, score)."""
    prob, score, count, points = 1.0, 0.0, 0, 0
    while count < most:
        room = most - count
        if depth < bottom_of(a, kid):
            points = _offer(desk, points, room, prob, count - 1, kid, depth)
        elif kid >= 0:
            total = a.nodes[kid, COUNT]
            for i in range(_rank_kids(a, kid, (wish.least - SAME) * total / prob, min(wish.width, room), desk)):
                chance = prob * (size_of(a, desk.ints[RANKED, i]) / total)
                points = _offer(desk, points, room, chance, count - 1, desk.ints[RANKED, i], depth)
        if points == 0:
            break
        prob, parent = desk.floats[OPEN_PROB, 0], desk.ints[OPEN_PARENT, 0]
        kid, depth = desk.ints[OPEN_KID, 0], desk.ints[OPEN_DEPTH, 0]
        if score + prob * room <= bar + SAME:
            return 0, 0.0
        points -= 1
        for j in range(points):
            _move(desk, j + 1, j)
        _write(a, desk, count, ahead(a, start_of(a, kid), depth), parent, prob)
        score += prob
        count += 1
        depth += 1
    return count, score


@njit(**INLINE)
def _draft(a: Arrays, root: int, sequence: int, count: int, most: int, wish: Wish, bar: float, desk: Desk):
    """The best draft of one tree whose score passes `bar`; returns (tokens, score, match length)."""
    tokens, score, length = 0, bar, 0
    for m in range(_matches(a, root, sequence, desk, count), 0, -1):
        budget = min(most, int(np.floor(m * wish.factor + wish.offset + 1e-6)))
        if budget <= score + SAME:
            continue
        kid = desk.ints[FOUND, m]
        if wish.width == 1:
            written, value = _follow(a, kid, m, budget, wish, score, desk)
        else:
            written, value = _spread(a, kid, m, budget, wish, score, desk)
        if written > 0 and value > score + SAME:
            tokens, score, length = written, value, m
            for i in range(written):
                desk.ints[TOKENS, i], desk.ints[PARENTS, i] = desk.ints[TRY_TOKENS, i], desk.ints[TRY_PARENTS, i]
                desk.floats[PROBS, i] = desk.floats[TRY_PROBS, i]
    return tokens, score, length


@njit(**OPTIONS)
def draft(a: Arrays, own: int, root: int, shared: int, count: int, most: int, wish: Wish, desk: Desk, live: bool):
    """The better draft of a request's own tree and the shared one, whose `root` may be NONE, for the tail on the desk.

    `live`: the tail is the end of the request's own sequences, so its matches can be read from them.
    """
    own_root = np.int64(a.sequences[own, ROOT])
    tokens, score, length = _draft(a, own_root, own if live else NONE, count, most, wish, 0.0, desk)
    if root >= 0:
        others, value, match = _draft(a, root, shared if live else NONE, count, most, wish, score, desk)
        if others > 0:
            return others, value, match
    return tokens, score, length
