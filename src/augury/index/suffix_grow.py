"""Append a token to a tree.

When a sequence grows, only suffixes that occur more than once need work: they are ends of nodes, they are the shortest
ones, and each takes one step down. All longer ones are leaves and grow by themselves. A suffix that steps along an
edge that no other suffix ends on takes its node with it instead of making a new one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.index.suffix_kids import added, find_kid, renamed
from augury.index.suffix_layout import (
    BLOCK,
    BLOCK_AFTER,
    BLOCK_BEFORE,
    BLOCKS_FREE,
    BLOCKS_TOP,
    BLOCKS_USED,
    COUNT,
    DEPTH,
    ENDS,
    FIRST,
    HOME,
    INLINE,
    KIDS,
    LAST,
    LEAVES,
    LENGTH,
    LIMIT,
    NO_KID,
    NONE,
    OPTIONS,
    ORDINAL,
    OWNER,
    PARENT,
    PEAK,
    REF,
    ROOT,
    SHIFT,
    TOKEN,
    Arrays,
    behind,
    free_node,
    new_node,
    newer,
    reach,
    size_of,
    token_of,
)
from augury.index.suffix_lists import attach, detach, link, replace, rise


@njit(**INLINE)
def _visit(a: Arrays, node: int, place: int) -> None:
    """Count one more occurrence of a node's string and let it end there for now."""
    a.nodes[node, COUNT] += 1
    a.nodes[node, PEAK] = max(a.nodes[node, PEAK], a.nodes[node, COUNT])
    if newer(a, place, a.nodes[node, REF]):
        a.nodes[node, REF] = place
    attach(a, node, ENDS, place)


@njit(**OPTIONS)
def _hang(a: Arrays, node: int, place: int) -> None:
    """Hang a string below a node: as a leaf, or as an end if it stops there."""
    if reach(a, place) == a.nodes[node, DEPTH]:
        attach(a, node, ENDS, place)
    else:
        attach(a, node, LEAVES, place)
        added(a, node, ~place)


@njit(**INLINE)
def _carry(a: Arrays, node: int, kid: int, place: int) -> None:
    """Move a node one token down the edge to its only kid; where it meets the kid, the two become one."""
    nodes = a.nodes
    nodes[node, DEPTH] += 1
    if kid < 0:
        if reach(a, ~kid) == nodes[node, DEPTH]:
            nodes[node, KIDS] = 0
            detach(a, node, LEAVES, ~kid)
            attach(a, node, ENDS, ~kid)
    elif nodes[kid, DEPTH] == nodes[node, DEPTH]:
        parent = nodes[node, PARENT]
        renamed(a, parent, node, kid, token_of(a, parent, node))
        replace(a, parent, node, kid)
        free_node(a, node)
        _visit(a, kid, place)


@njit(**OPTIONS)
def _part(a: Arrays, node: int, kid: int, token: int) -> int:
    """Put a new node one token below `node` on the edge to a kid."""
    ref = a.nodes[kid, REF] if kid >= 0 else ~kid
    middle = new_node(a, a.nodes[node, DEPTH] + 1, size_of(a, kid), ref)
    renamed(a, node, kid, middle, token)
    if kid >= 0:
        replace(a, node, kid, middle)
        link(a, middle, kid)
        a.nodes[middle, KIDS] = 1
    else:
        detach(a, node, LEAVES, ~kid)
        link(a, node, middle)
        _hang(a, middle, ~kid)
    return middle


@njit(**INLINE)
def _step(a: Arrays, node: int, place: int, token: int) -> None:
    """Take the suffix from `place`, which ends at `node`, one token further down."""
    nodes = a.nodes
    kid = find_kid(a, node, token)
    inner = nodes[node, DEPTH] > 0
    if inner and kid != NO_KID and nodes[node, KIDS] == 1 and nodes[node, COUNT] == size_of(a, kid) + 1:
        _carry(a, node, kid, place)
        return
    if inner:
        detach(a, node, ENDS, place)
    if kid == NO_KID:
        attach(a, node, LEAVES, place)
        added(a, node, ~place)
        return
    if kid < 0 or nodes[kid, DEPTH] > nodes[node, DEPTH] + 1:
        kid = _part(a, node, kid, token)
    _visit(a, kid, place)
    rise(a, kid)


@njit(**INLINE)
def _new_place(a: Arrays, sequence: int) -> int:
    """The place for a sequence's next token."""
    line, length = a.sequences[sequence], a.sequences[sequence, LENGTH]
    offset = length & (BLOCK - 1)
    if offset == 0:
        block = a.counters[BLOCKS_FREE]
        if block >= 0:
            a.counters[BLOCKS_FREE] = a.blocks[block, BLOCK_AFTER]
        else:
            block = a.counters[BLOCKS_TOP]
            a.counters[BLOCKS_TOP] += 1
        a.counters[BLOCKS_USED] += 1
        a.blocks[block, BLOCK_AFTER], a.blocks[block, BLOCK_BEFORE] = NONE, line[LAST]
        a.blocks[block, OWNER], a.blocks[block, ORDINAL] = sequence, length >> SHIFT
        if line[LAST] >= 0:
            a.blocks[line[LAST], BLOCK_AFTER] = block
        else:
            line[FIRST] = block
        line[LAST] = block
    return (np.int64(line[LAST]) << SHIFT) | offset


@njit(**INLINE)
def ends_at(a: Arrays, last: int, length: int) -> int:
    """The node at which the last `length` tokens up to the place `last` end, or NONE if they occur only here."""
    node = a.places[behind(a, last, length - 1), HOME]
    return node if a.nodes[node, DEPTH] == length else NONE


@njit(**OPTIONS)
def append(a: Arrays, sequence: int, tokens: np.ndarray) -> None:
    """Add tokens to the end of a sequence; the caller has made sure of room."""
    root = a.sequences[sequence, ROOT]
    for i in range(len(tokens)):
        token = np.int64(tokens[i])
        length = a.sequences[sequence, LENGTH]
        place = _new_place(a, sequence)
        a.places[place, TOKEN] = token
        repeated = 0
        if length > 0:
            last = behind(a, place, 1)
            most = min(length, a.counters[LIMIT] - 1)
            while repeated < most and ends_at(a, last, repeated + 1) != NONE:
                repeated += 1
        a.sequences[sequence, LENGTH] += 1
        for back in range(repeated, 0, -1):
            suffix = behind(a, place, back)
            _step(a, np.int64(a.places[suffix, HOME]), suffix, token)
        a.nodes[root, COUNT] += 1
        _step(a, root, place, token)
