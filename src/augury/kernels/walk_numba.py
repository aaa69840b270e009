"""After the draw, in one loop on the host: walk each group's draft, append what it emits, set how much it may draft.

The walk is that of kernels/verify.py, the append that of SlotState, the budget that of engine/settle.py.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from augury.kernels.arrays import Array, array_of, lasting, with_array
from augury.kernels.room_numba import put
from augury.kernels.slot_tables import SlotTables, Walked
from augury.verify.tree import Draft

NO_COUNTS = np.empty((0, 0), np.int32)


def walk(
    drawn: Tensor, first: Tensor, draft: Draft, segments: Tensor, slots: SlotTables, lookahead: int, branching: bool
) -> Walked:
    """Follow the drawn tokens; `segments`, `lookahead` and `branching` are those of walk_triton.walk."""
    groups, nodes = draft.tokens.shape
    sizes = ((groups, nodes + 3), (groups, nodes), (groups,), (groups,))
    summary, path, lengths, budget = (np.empty(size, np.int64) for size in sizes)
    walk_groups(
        array_of(drawn),
        array_of(first),
        array_of(draft.tokens),
        array_of(draft.parents),
        array_of(segments),
        lasting(slots.history),
        lasting(slots.length),
        lasting(slots.alive),
        lasting(slots.limit),
        lasting(slots.end_tokens),
        NO_COUNTS if slots.counts is None else lasting(slots.counts),
        lookahead,
        branching,
        summary,
        path,
        lengths,
        budget,
    )
    return Walked(*map(with_array, (summary, path, lengths, budget)))


@njit(cache=True, nogil=True)
def walk_groups(
    drawn: Array,
    first: Array,
    tokens: Array,
    parents: Array,
    segments: Array,
    history: Array,
    slot_length: Array,
    slot_alive: Array,
    limit: Array,
    end_tokens: Array,
    counts: Array,
    lookahead: int,
    branching: bool,
    summary: Array,
    path: Array,
    lengths: Array,
    budget: Array,
) -> None:
    """Walk, append and set the budget for one group after another; see walk."""
    for g in range(len(first)):
        slot, ends, count = segments[0, g], segments[1, g] + segments[2, g], segments[3, g]
        summary[g, :2], summary[g, 2:], path[g] = 0, -1, -1
        emitted, budget[g] = 0, 0
        if first[g] >= 0:
            accepted = follow(drawn[first[g] :], tokens[g, :count], parents[g], summary[g, 2:], path[g])
            emitted = accepted + 1
            summary[g, 0], summary[g, 1] = accepted, emitted
            said = summary[g, 2 : 2 + emitted]
            put(history[slot, ends : ends + emitted], said)
            if len(counts):
                for token in said:
                    counts[slot, token] += 1
            left = limit[slot] - ends - emitted
            slot_alive[slot] = left > 0 and not ended(said, end_tokens[slot])
            free = segments[6, g] - ends - emitted
            budget[g] = may_draft(left, segments[7, g], free, lookahead, branching)
        slot_length[slot] = lengths[g] = ends + emitted


@njit(cache=True, nogil=True)
def follow(drawn: Array, tokens: Array, parents: Array, said: Array, path: Array) -> int:
    """Descend while a child carries the token drawn above it, to the first such child; returns how many it accepts."""
    at, accepted = -1, 0
    said[0] = drawn[0]
    for node in range(len(tokens)):
        if parents[node] == at and tokens[node] == said[accepted]:
            path[accepted] = at = node
            accepted += 1
            said[accepted] = drawn[1 + node]
    return accepted


@njit(cache=True, nogil=True)
def ended(said: Array, end_tokens: Array) -> bool:
    """Whether one of these tokens ends a text."""
    for token in said:
        for end in end_tokens:
            if token == end:
                return True
    return False


@njit(cache=True, nogil=True)
def may_draft(left: int, allowed: int, free: int, lookahead: int, branching: bool) -> int:
    """How many nodes a request that drew a token may draft next; see engine/settle.py's budget."""
    nodes = (allowed if left > 1 else 0) if branching else min(left - 1, allowed)
    if lookahead > 0:
        nodes = min(nodes, 0 if branching and free < lookahead else free)
    return max(0, nodes)


def depths(draft: Draft) -> Tensor:
    """How deep each tree goes, int64 [G]."""
    out = torch.empty_like(draft.count)
    measure_depths(array_of(draft.parents), array_of(draft.count), out.numpy())
    return out


@njit(cache=True, nogil=True)
def measure_depths(parents: Array, count: Array, out: Array) -> None:
    """Fill in the depth of each group's tree; parents precede children."""
    depth = np.empty(parents.shape[1], np.int64)
    for g in range(len(count)):
        out[g] = 0
        for node in range(count[g]):
            parent = parents[g, node]
            depth[node] = depth[parent] + 1 if parent >= 0 else 1
            out[g] = max(out[g], depth[node])
