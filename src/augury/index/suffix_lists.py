"""What hangs from a node: leaves and ends in linked lists, inner kids in another, the most frequent first.

Only heavy kids stand in order. They are few, so a kid that becomes heavy finds its place in a few steps; to keep all
in order would take a walk past every sibling of equal count, and after a comma there are thousands.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.index.suffix_layout import (
    AFTER,
    BEFORE,
    COUNT,
    DEPTH,
    HEAD,
    HEAVY,
    HOME,
    INLINE,
    NEXT,
    NONE,
    OPTIONS,
    PARENT,
    PEAK,
    PREV,
    Arrays,
)


@njit(**INLINE)
def attach(a: Arrays, node: int, column: int, place: int) -> None:
    """Make a place one of a node's LEAVES or ENDS."""
    head = a.nodes[node, column]
    a.places[place, AFTER], a.places[place, BEFORE], a.places[place, HOME] = head, NONE, node
    if head >= 0:
        a.places[head, BEFORE] = place
    a.nodes[node, column] = place


@njit(**INLINE)
def detach(a: Arrays, node: int, column: int, place: int) -> None:
    """Take a place out of a node's LEAVES or ENDS."""
    after, before = a.places[place, AFTER], a.places[place, BEFORE]
    if before >= 0:
        a.places[before, AFTER] = after
    else:
        a.nodes[node, column] = after
    if after >= 0:
        a.places[after, BEFORE] = before


@njit(**OPTIONS)
def link(a: Arrays, node: int, kid: int) -> None:
    """Add an inner kid at the end of the list."""
    nodes, head = a.nodes, a.nodes[node, HEAD]
    nodes[kid, PARENT], nodes[kid, NEXT] = node, NONE
    if head < 0:
        nodes[node, HEAD], nodes[kid, PREV] = kid, kid
        return
    last = nodes[head, PREV]
    nodes[last, NEXT], nodes[kid, PREV], nodes[head, PREV] = kid, last, kid


@njit(**OPTIONS)
def unlink(a: Arrays, node: int, kid: int) -> None:
    """Take an inner kid out of the list."""
    nodes, head = a.nodes, a.nodes[node, HEAD]
    after, before = nodes[kid, NEXT], nodes[kid, PREV]
    if kid == head:
        nodes[node, HEAD] = after
    else:
        nodes[before, NEXT] = after
    if after >= 0:
        nodes[after, PREV] = before
    elif kid != head:
        nodes[head, PREV] = before


@njit(**OPTIONS)
def replace(a: Arrays, node: int, old: int, new: int) -> None:
    """Put an inner kid in the place of another in the list."""
    nodes = a.nodes
    after, before = nodes[old, NEXT], nodes[old, PREV]
    nodes[new, PARENT], nodes[new, NEXT], nodes[new, PREV] = node, after, before
    if nodes[node, HEAD] == old:
        nodes[node, HEAD] = new
        if after < 0:  # the only one is its own last
            nodes[new, PREV] = new
            return
    else:
        nodes[before, NEXT] = new
    if after >= 0:
        nodes[after, PREV] = new
    else:
        nodes[nodes[node, HEAD], PREV] = new


@njit(**OPTIONS)
def _insert_before(a: Arrays, node: int, kid: int, other: int) -> None:
    nodes, before = a.nodes, a.nodes[other, PREV]
    nodes[kid, NEXT], nodes[kid, PREV], nodes[other, PREV] = other, before, kid
    if nodes[node, HEAD] == other:
        nodes[node, HEAD] = kid
    else:
        nodes[before, NEXT] = kid


@njit(**OPTIONS)
def rise(a: Arrays, kid: int) -> None:
    """Reorder an inner kid whose count has grown; the kids of a root need no order."""
    nodes, node = a.nodes, a.nodes[kid, PARENT]
    head, count = nodes[node, HEAD], nodes[kid, COUNT]
    if kid == head or nodes[node, DEPTH] == 0 or count * HEAVY < nodes[node, COUNT]:
        return
    before = nodes[kid, PREV]
    if nodes[before, COUNT] >= count and nodes[before, COUNT] * HEAVY >= nodes[node, COUNT]:
        return
    other = head  # the heavy ones are few and come first
    while other != kid and nodes[other, COUNT] >= count:
        other = nodes[other, NEXT]
    if other != kid:
        unlink(a, node, kid)
        _insert_before(a, node, kid, other)


@njit(**OPTIONS)
def sink(a: Arrays, kid: int) -> None:
    """Reorder an inner kid whose count has fallen by one."""
    nodes, node = a.nodes, a.nodes[kid, PARENT]
    count, other = nodes[kid, COUNT], nodes[kid, NEXT]
    if nodes[node, DEPTH] == 0 or (count + 1) * HEAVY < nodes[node, COUNT]:
        return
    if other < 0 or nodes[other, COUNT] <= count:
        return
    while other >= 0 and nodes[other, COUNT] > count:
        other = nodes[other, NEXT]
    unlink(a, node, kid)
    if other >= 0:
        _insert_before(a, node, kid, other)
    else:
        link(a, node, kid)


@njit(**OPTIONS)
def settle(a: Arrays, node: int) -> None:
    """Reorder all kids after a node's count has halved: untouched ones may have become heavy."""
    nodes = a.nodes
    if 2 * nodes[node, COUNT] >= nodes[node, PEAK]:
        return
    nodes[node, PEAK] = nodes[node, COUNT]
    kid = np.int64(nodes[node, HEAD])
    while kid >= 0:
        after = np.int64(nodes[kid, NEXT])
        rise(a, kid)
        kid = after
