"""Taking sequences out of a tree."""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.index.suffix_kids import forget_kids, leaving, renamed
from augury.index.suffix_layout import (
    AFTER,
    BLOCK_AFTER,
    BLOCKS_FREE,
    BLOCKS_USED,
    COUNT,
    DEPTH,
    ENDS,
    FIRST,
    HEAD,
    HOME,
    KIDS,
    LAST,
    LEAVES,
    LENGTH,
    NEXT,
    NONE,
    OPTIONS,
    PARENT,
    REF,
    ROOT,
    SHIFT,
    Arrays,
    ahead,
    free_node,
    newer,
    reach,
    token_of,
)
from augury.index.suffix_lists import attach, detach, replace, settle, sink, unlink


@njit(**OPTIONS)
def _most_recent(a: Arrays, node: int) -> int:
    """The most recent occurrence of a node's string among its kids and ends."""
    best = int(NONE)
    kid = a.nodes[node, HEAD]
    while kid >= 0:
        if best < 0 or newer(a, a.nodes[kid, REF], best):
            best = int(a.nodes[kid, REF])
        kid = a.nodes[kid, NEXT]
    for column in (LEAVES, ENDS):
        place = a.nodes[node, column]
        while place >= 0:
            if best < 0 or newer(a, place, best):
                best = int(place)
            place = a.places[place, AFTER]
    return best


@njit(**OPTIONS)
def _tidy(a: Arrays, node: int, parent: int) -> None:
    """Remove a node that no longer parts anything: nothing left, one string left, or one kid as frequent as itself."""
    nodes = a.nodes
    count, head = nodes[node, COUNT], nodes[node, HEAD]
    if count == 0:
        leaving(a, parent, node)
        unlink(a, parent, node)
        free_node(a, node)
    elif count == 1:
        lone = nodes[node, LEAVES] if nodes[node, LEAVES] >= 0 else nodes[node, ENDS]
        renamed(a, parent, node, ~lone, token_of(a, parent, node))
        unlink(a, parent, node)
        free_node(a, node)
        attach(a, parent, LEAVES, lone)
    elif nodes[node, KIDS] == 1 and head >= 0 and nodes[head, COUNT] == count:
        renamed(a, parent, node, head, token_of(a, parent, node))
        replace(a, parent, node, head)
        free_node(a, node)


@njit(**OPTIONS)
def _remove(a: Arrays, place: int) -> None:
    """Take the suffix that starts at a place out of its tree."""
    nodes = a.nodes
    node = np.int64(a.places[place, HOME])
    if nodes[node, DEPTH] > 0 and reach(a, place) == nodes[node, DEPTH]:
        detach(a, node, ENDS, place)
    else:
        leaving(a, node, ~place)
        detach(a, node, LEAVES, place)
    while nodes[node, DEPTH] > 0:
        parent = np.int64(nodes[node, PARENT])
        nodes[node, COUNT] -= 1
        if nodes[node, REF] == place and nodes[node, COUNT] > 0:
            nodes[node, REF] = _most_recent(a, node)
        sink(a, node)
        settle(a, node)
        _tidy(a, node, parent)
        node = parent
    nodes[node, COUNT] -= 1


@njit(**OPTIONS)
def _free_text(a: Arrays, sequence: int) -> None:
    block = a.sequences[sequence, FIRST]
    while block >= 0:
        after = a.blocks[block, BLOCK_AFTER]
        a.blocks[block, BLOCK_AFTER] = a.counters[BLOCKS_FREE]
        a.counters[BLOCKS_FREE] = block
        a.counters[BLOCKS_USED] -= 1
        block = after
    a.sequences[sequence, LENGTH] = 0
    a.sequences[sequence, FIRST] = a.sequences[sequence, LAST] = NONE


@njit(**OPTIONS)
def remove(a: Arrays, sequence: int) -> None:
    """Take a sequence out of its tree, oldest suffix first, so that a node's ref stays as long as the node exists."""
    if a.sequences[sequence, LENGTH] > 0:
        place = np.int64(a.sequences[sequence, FIRST]) << SHIFT
        for i in range(a.sequences[sequence, LENGTH]):
            if i > 0:
                place = ahead(a, place, 1)
            _remove(a, place)
    _free_text(a, sequence)


@njit(**OPTIONS)
def fell(a: Arrays, sequence: int) -> None:
    """Free the whole tree of a sequence that is alone in it, its root too; faster than suffix by suffix."""
    nodes = a.nodes
    node = np.int64(a.sequences[sequence, ROOT])
    forget_kids(a, node)
    while node >= 0:
        kid = np.int64(nodes[node, HEAD])
        if kid >= 0:
            nodes[node, HEAD] = nodes[kid, NEXT]
            node = kid
            forget_kids(a, node)
        else:
            parent = np.int64(nodes[node, PARENT])
            free_node(a, node)
            node = parent
    _free_text(a, sequence)
