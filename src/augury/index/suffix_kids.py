"""Finding the kid of a node by its token.

If a node has few kids, each is looked at; if it has many, they are in one hash table that all nodes share. The table
holds the kid's name and 32 bits of the hash of (node, token); whether it is the right kid is read from the tree itself,
so equal hashes do no harm.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.index.suffix_layout import (
    AFTER,
    FEW,
    HEAD,
    HOME,
    INLINE,
    KID,
    KIDS,
    LEAVES,
    NEXT,
    NO_KID,
    OPTIONS,
    PARENT,
    TABLE_USED,
    TAG,
    Arrays,
    token_of,
)


@njit(**INLINE)
def _tag(node: int, token: int) -> int:
    mixed = (np.int64(node) * 0x100000001 + token) * np.int64(-7046029254386353131)
    mixed ^= mixed >> 32
    mixed *= np.int64(-7046029254386353131)
    return int(np.int32(mixed >> 32))


@njit(**INLINE)
def _line(tag: int, capacity: int) -> int:
    return ((int(tag) & 0xFFFFFFFF) * capacity) >> 32


@njit(**OPTIONS)
def _enter(table: np.ndarray, tag: int, kid: int) -> None:
    line = _line(tag, len(table))
    while table[line, KID] != NO_KID:
        line = line + 1 if line + 1 < len(table) else 0
    table[line, TAG], table[line, KID] = tag, kid


@njit(**OPTIONS)
def refill(old: np.ndarray, new: np.ndarray) -> None:
    """Enter all of one table in another, empty one."""
    for line in range(len(old)):
        if old[line, KID] != NO_KID:
            _enter(new, old[line, TAG], old[line, KID])


@njit(**OPTIONS)
def _line_of(table: np.ndarray, tag: int, kid: int) -> int:
    line = _line(tag, len(table))
    while table[line, KID] != kid or table[line, TAG] != tag:
        line = line + 1 if line + 1 < len(table) else 0
    return line


@njit(**OPTIONS)
def _strike(table: np.ndarray, tag: int, kid: int) -> None:
    """Remove an entry and close the gap: whatever may move back over it does, so searches never meet a tombstone."""
    size = len(table)
    gap = _line_of(table, tag, kid)
    line = gap
    while True:
        line = line + 1 if line + 1 < size else 0
        if table[line, KID] == NO_KID:
            break
        home = _line(table[line, TAG], size)
        if (line - home) % size >= (line - gap) % size:
            table[gap, TAG], table[gap, KID] = table[line, TAG], table[line, KID]
            gap = line
    table[gap, KID] = NO_KID


@njit(**OPTIONS)
def _hash_all(a: Arrays, node: int, enter: bool) -> None:
    """Enter every kid of a node in the table, or remove them all."""
    for leaves in range(2):
        at = a.nodes[node, LEAVES] if leaves else a.nodes[node, HEAD]
        while at >= 0:
            kid = ~at if leaves else at
            tag = _tag(node, token_of(a, node, kid))
            if enter:
                _enter(a.table, tag, kid)
            else:
                _strike(a.table, tag, kid)
            a.counters[TABLE_USED] += 1 if enter else -1
            at = a.places[at, AFTER] if leaves else a.nodes[at, NEXT]


@njit(**OPTIONS)
def forget_kids(a: Arrays, node: int) -> None:
    """Remove a node's kids from the table, and set its number of kids to 0."""
    if a.nodes[node, KIDS] > FEW:
        _hash_all(a, node, False)
    a.nodes[node, KIDS] = 0


@njit(**OPTIONS)
def added(a: Arrays, node: int, kid: int) -> None:
    """Record that a kid has joined one of a node's lists."""
    a.nodes[node, KIDS] += 1
    if a.nodes[node, KIDS] == FEW + 1:
        _hash_all(a, node, True)
    elif a.nodes[node, KIDS] > FEW:
        _enter(a.table, _tag(node, token_of(a, node, kid)), kid)
        a.counters[TABLE_USED] += 1


@njit(**OPTIONS)
def leaving(a: Arrays, node: int, kid: int) -> None:
    """Record that a kid is about to leave its list."""
    if a.nodes[node, KIDS] == FEW + 1:
        _hash_all(a, node, False)
    elif a.nodes[node, KIDS] > FEW:
        _strike(a.table, _tag(node, token_of(a, node, kid)), kid)
        a.counters[TABLE_USED] -= 1
    a.nodes[node, KIDS] -= 1


@njit(**OPTIONS)
def renamed(a: Arrays, node: int, old: int, new: int, token: int) -> None:
    """Record that another kid now stands for the same token."""
    if a.nodes[node, KIDS] > FEW:
        a.table[_line_of(a.table, _tag(node, token), old), KID] = new


@njit(**INLINE)
def find_kid(a: Arrays, node: int, token: int) -> int:
    """The kid whose edge starts with a token, or NO_KID."""
    if a.nodes[node, KIDS] > FEW:
        tag, size = _tag(node, token), len(a.table)
        line = _line(tag, size)
        while a.table[line, KID] != NO_KID:
            if a.table[line, TAG] == tag:
                kid = int(a.table[line, KID])
                parent = a.nodes[kid, PARENT] if kid >= 0 else a.places[~kid, HOME]
                if parent == node and token_of(a, node, kid) == token:
                    return kid
            line = line + 1 if line + 1 < size else 0
        return NO_KID
    kid = int(a.nodes[node, HEAD])
    while kid >= 0:
        if token_of(a, node, kid) == token:
            return kid
        kid = int(a.nodes[kid, NEXT])
    leaf = int(a.nodes[node, LEAVES])
    while leaf >= 0:
        if token_of(a, node, ~leaf) == token:
            return ~leaf
        leaf = int(a.places[leaf, AFTER])
    return NO_KID
