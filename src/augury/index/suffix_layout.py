"""The memory layout of the suffix index, and the functions that navigate it.

A tree holds, for every place in its sequences, the string of up to `depth` tokens that starts there (a suffix). It is
path-compressed. An inner node stands wherever strings part or one of several ends; a string that is alone below some
node hangs there as a *leaf* and costs no node; a string that ends exactly at a node is an *end* of it. So every place
is at any time a leaf or an end of one node, its home, and a growing sequence lengthens its leaves for free.

    count of a node = counts of its inner kids + leaves + ends = how often its string occurs

A kid is named by a number: an inner node v as v, a leaf by its place p as ~p. Sequences lie in chains of blocks.
Recency orders occurrences: the later request first, within one the later place. A node's `ref` is its most recent
occurrence; its string is read there. Since eviction goes from the oldest request up, a ref outlives its node.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy"}
INLINE: dict[str, Any] = {**OPTIONS, "forceinline": True}

NONE = -1
NO_KID = -(2**31)  # every other int32 may name a kid
FEW = 4  # kids up to this many are found by looking at each, more by hash
HEAVY = 64  # a kid with at least this part of its node's count stands in order of frequency, before all others
SHIFT = 5
BLOCK = 1 << SHIFT  # places per block

# nodes [*, 11]; HEAD is the first inner kid, NEXT and PREV link it to its siblings (the first's PREV is the last)
COUNT, DEPTH, REF, PARENT, HEAD, NEXT, PREV, LEAVES, ENDS, KIDS, PEAK = range(11)
# places [*, 4]; AFTER and BEFORE link the leaves, or the ends, of one node
TOKEN, AFTER, BEFORE, HOME = range(4)
# blocks [*, 4]
BLOCK_AFTER, BLOCK_BEFORE, OWNER, ORDINAL = range(4)
# sequences [*, 5]; NUMBER orders them by age
ROOT, FIRST, LAST, LENGTH, NUMBER = range(5)
# table [*, 2]
TAG, KID = range(2)
# counters
LIMIT, NODES_FREE, NODES_TOP, NODES_USED, BLOCKS_FREE, BLOCKS_TOP, BLOCKS_USED, TABLE_USED = range(8)


class Arrays(NamedTuple):
    """All of the index, as the compiled code sees it; int32 but for the counters."""

    nodes: np.ndarray
    places: np.ndarray
    blocks: np.ndarray
    sequences: np.ndarray
    table: np.ndarray
    counters: np.ndarray


@njit(**INLINE)
def ahead(a: Arrays, place: int, steps: int) -> int:
    """The place `steps` further on in the same sequence."""
    offset = (place & (BLOCK - 1)) + steps
    block = place >> SHIFT
    while offset >= BLOCK:
        block = a.blocks[block, BLOCK_AFTER]
        offset -= BLOCK
    return (block << SHIFT) | offset


@njit(**INLINE)
def behind(a: Arrays, place: int, steps: int) -> int:
    """The place `steps` before in the same sequence."""
    offset = (place & (BLOCK - 1)) - steps
    block = place >> SHIFT
    while offset < 0:
        block = a.blocks[block, BLOCK_BEFORE]
        offset += BLOCK
    return (block << SHIFT) | offset


@njit(**INLINE)
def index_of(a: Arrays, place: int) -> int:
    """How many places come before this one in its sequence."""
    return (a.blocks[place >> SHIFT, ORDINAL] << SHIFT) | (place & (BLOCK - 1))


@njit(**INLINE)
def reach(a: Arrays, place: int) -> int:
    """How long the string is that starts here: to the depth limit or the end of what is known."""
    length = a.sequences[a.blocks[place >> SHIFT, OWNER], LENGTH]
    return min(a.counters[LIMIT], length - index_of(a, place))


@njit(**INLINE)
def newer(a: Arrays, place: int, other: int) -> bool:
    """Whether one occurrence is more recent than another."""
    mine, its = a.blocks[place >> SHIFT, OWNER], a.blocks[other >> SHIFT, OWNER]
    if mine != its:
        return a.sequences[mine, NUMBER] > a.sequences[its, NUMBER]
    return index_of(a, place) > index_of(a, other)


@njit(**INLINE)
def start_of(a: Arrays, kid: int) -> int:
    """A place where a kid's string starts, the most recent one."""
    return a.nodes[kid, REF] if kid >= 0 else ~kid


@njit(**INLINE)
def size_of(a: Arrays, kid: int) -> int:
    """How often a kid's string occurs."""
    return a.nodes[kid, COUNT] if kid >= 0 else 1


@njit(**INLINE)
def bottom_of(a: Arrays, kid: int) -> int:
    """The depth at which a kid's edge ends."""
    return a.nodes[kid, DEPTH] if kid >= 0 else reach(a, ~kid)


@njit(**INLINE)
def token_of(a: Arrays, node: int, kid: int) -> int:
    """The first token on the edge from a node to its kid."""
    return a.places[ahead(a, start_of(a, kid), a.nodes[node, DEPTH]), TOKEN]


@njit(**OPTIONS)
def new_node(a: Arrays, depth: int, count: int, ref: int) -> int:
    """A node without kids or parent; the caller has made sure of room."""
    node = a.counters[NODES_FREE]
    if node >= 0:
        a.counters[NODES_FREE] = a.nodes[node, PARENT]
    else:
        node = a.counters[NODES_TOP]
        a.counters[NODES_TOP] += 1
    a.counters[NODES_USED] += 1
    line = a.nodes[node]
    line[COUNT], line[DEPTH], line[REF], line[KIDS], line[PEAK] = count, depth, ref, 0, count
    line[PARENT] = line[HEAD] = line[NEXT] = line[PREV] = line[LEAVES] = line[ENDS] = NONE
    return node


@njit(**OPTIONS)
def free_node(a: Arrays, node: int) -> None:
    """Free a node."""
    a.nodes[node, PARENT] = a.counters[NODES_FREE]
    a.counters[NODES_FREE] = node
    a.counters[NODES_USED] -= 1
