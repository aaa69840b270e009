"""After the draw, in one kernel: walk each group's draft, append what it emits, and set how much it may draft.

One program per group. The walk is that of kernels/verify.py, the append that of SlotState, the budget that of the
engine.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.acceptance_triton import node_uniforms
from augury.kernels.layout_triton import shape_of
from augury.kernels.slot_tables import SlotTables, Walked
from augury.verify.tree import Draft


def walk(
    drawn: Tensor,
    first: Tensor,
    draft: Draft,
    segments: Tensor,
    slots: SlotTables,
    rates: Tensor | None,
    lookahead: int,
    branching: bool,
) -> Walked:
    """Follow the drawn tokens, or first children at `rates` if given (the `synthetic` rule).

    `segments` is the pass's int64 [8, G] table; `lookahead` and `branching` are DraftLimits of engine/settle.py.
    """
    groups, nodes = draft.tokens.shape
    history, length, alive, limit, end_tokens, counts, seeds = slots
    kind = {"dtype": torch.int64, "device": drawn.device}
    out = Walked(
        torch.empty(groups, nodes + 3, **kind),
        torch.empty(groups, nodes, **kind),
        torch.empty(groups, **kind),
        torch.empty(groups, **kind),
    )
    _walk[(groups,)](
        drawn,
        first,
        draft.tokens,
        draft.parents,
        segments,
        history,
        length,
        alive,
        limit,
        end_tokens,
        drawn if counts is None else counts,
        seeds,
        seeds if rates is None else rates,
        *out,
        segments.stride(0),
        history.stride(0),
        0 if counts is None else counts.stride(0),
        nodes,
        END_TOKENS=end_tokens.shape[1],
        COUNTED=counts is not None,
        BRANCHING=branching,
        LOOKAHEAD=lookahead,
        RATES=0 if rates is None else len(rates),
        LEVELS=nodes.bit_length(),
        NODES=triton.next_power_of_2(max(2, nodes)),
        num_warps=1,
    )
    return out


@triton.jit(do_not_specialize=["field", "history_stride", "counts_stride", "nodes_wide"])
def _walk(
    drawn,
    first,
    tokens,
    parents,
    segments,
    history,
    slot_length,
    slot_alive,
    limit,
    end_tokens,
    counts,
    seeds,
    rates,
    summary,
    path,
    lengths,
    budget,
    field,
    history_stride,
    counts_stride,
    nodes_wide,
    END_TOKENS: tl.constexpr,
    COUNTED: tl.constexpr,
    BRANCHING: tl.constexpr,
    LOOKAHEAD: tl.constexpr,
    RATES: tl.constexpr,
    LEVELS: tl.constexpr,
    NODES: tl.constexpr,
):
    g = tl.program_id(0)
    n = tl.arange(0, NODES)
    root = tl.load(first + g)
    active = root >= 0
    slot = tl.load(segments + g)
    ends = tl.load(segments + field + g) + tl.load(segments + 2 * field + g)
    real = (n < tl.load(segments + 3 * field + g)) & active
    token = tl.load(tokens + g * nodes_wide + n, mask=real, other=-1)
    parent = tl.load(parents + g * nodes_wide + n, mask=n < nodes_wide, other=-2)
    if RATES > 0:
        agrees = real & (token >= 0)
        chance = _by_chance(parent, n, ends, tl.load(seeds + slot), rates, RATES, LEVELS, NODES)
    else:
        agrees = real & (token >= 0) & (tl.load(drawn + root + 1 + parent, mask=real, other=-1) == token)
        chance = real

    line = summary + g * (nodes_wide + 3)
    tl.store(path + g * nodes_wide + n, tl.full([NODES], -1, tl.int64), mask=n < nodes_wide)
    tl.store(line + 2 + n, tl.full([NODES], -1, tl.int64), mask=n < nodes_wide)
    tl.store(line + 2 + nodes_wide, -1)
    tl.debug_barrier()  # the blanks are written before anything overwrites them
    past = history + slot * history_stride + ends
    ending = tl.load(end_tokens + slot * END_TOKENS + tl.arange(0, END_TOKENS))
    at, accepted, ended = -1, 0, 0
    node = _first_child(-1, parent, n, agrees, chance, NODES)
    while node < NODES:
        said = tl.load(tokens + g * nodes_wide + node)
        tl.store(path + g * nodes_wide + accepted, node.to(tl.int64))
        tl.store(line + 2 + accepted, said)
        _say(past + accepted, counts + slot * counts_stride, said, COUNTED)
        ended += tl.sum((ending == said).to(tl.int32), 0)
        at = node
        accepted += 1
        node = _first_child(at, parent, n, agrees, chance, NODES)
    if active:
        said = tl.load(drawn + root + 1 + at)
        tl.store(line + 2 + accepted, said)
        _say(past + accepted, counts + slot * counts_stride, said, COUNTED)
        ended += tl.sum((ending == said).to(tl.int32), 0)
    emitted = tl.where(active, accepted + 1, 0)
    tl.store(line, accepted)
    tl.store(line + 1, emitted)
    length = ends + emitted
    tl.store(lengths + g, length)
    left = tl.load(limit + slot) - length
    tl.store(slot_length + slot, length)
    if active:
        tl.store(slot_alive + slot, ((ended == 0) & (left > 0)).to(tl.int64))
    allowed, room = tl.load(segments + 7 * field + g), tl.load(segments + 6 * field + g)
    if BRANCHING:
        may = tl.where(left > 1, allowed, 0)
    else:
        may = tl.minimum(left - 1, allowed)  # the last token of a request needs no draft
    if LOOKAHEAD > 0:
        free = room - length
        if BRANCHING:  # a tree needs the rows of all its levels
            free = tl.where(free >= LOOKAHEAD, free, 0)
        may = tl.minimum(may, free)
    tl.store(budget + g, tl.where(active, tl.maximum(may, 0), 0))


@triton.jit
def _first_child(at, parent, n, agrees, chance, NODES: tl.constexpr):
    """The first child of a node that agrees, if chance takes it too; else NODES."""
    node = tl.min(tl.where(agrees & (parent == at), n, NODES), 0)
    return tl.where(tl.sum((chance & (n == node)).to(tl.int32), 0) > 0, node, NODES)


@triton.jit
def _by_chance(parent, n, ends, seed, rates, RATES: tl.constexpr, LEVELS: tl.constexpr, NODES: tl.constexpr):
    """Which nodes the `synthetic` rule takes once it gets there: verify/verdict.py's uniforms against the rates."""
    depth, _ = shape_of(parent, n, LEVELS, NODES)
    rate = tl.load(rates + depth - 1, mask=depth <= RATES, other=0.0)
    return node_uniforms(n, depth, ends, seed).to(tl.float64) < rate


@triton.jit
def _say(past, counts, token, COUNTED: tl.constexpr):
    """Write a token to the history, and count it where penalties ask."""
    tl.store(past, token)
    if COUNTED:
        tl.atomic_add(counts + token, 1)


def depths(draft: Draft) -> Tensor:
    """How deep each tree goes, int64 [G]."""
    groups, nodes = draft.parents.shape
    out = torch.empty_like(draft.count)
    wide, stride = triton.next_power_of_2(max(2, nodes)), draft.parents.stride(0)
    _depths[(groups,)](draft.parents, draft.count, out, nodes, stride, LEVELS=nodes.bit_length(), NODES=wide)
    return out


@triton.jit(do_not_specialize=["nodes", "stride"])
def _depths(parents, count, out, nodes, stride, LEVELS: tl.constexpr, NODES: tl.constexpr):
    g, n = tl.program_id(0), tl.arange(0, NODES)
    depth, _ = shape_of(tl.load(parents + g * stride + n, mask=n < nodes, other=-1), n, LEVELS, NODES)
    tl.store(out + g, tl.max(tl.where(n < tl.load(count + g), depth, 0), 0))
