"""After the draw, in one kernel: walk each group's draft, write what it emits to the history, and say who may draft.

A program a group. The walk is that of kernels/verify.py, the append that of SlotState, the budget that of the engine.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.layout_triton import shape_of
from augury.verify.tree import Draft

ACCEPTED, COUNT, EMITTED = 0, 1, 2  # columns of `Walked.summary`


class Walked(NamedTuple):
    """What a walk decides, a line a group."""

    summary: Tensor  # int64 [G, N + 3]: drafts accepted, tokens emitted, the tokens (-1 past their count)
    path: Tensor  # int64 [G, N]: accepted node numbers from the root down, -1 past the end
    lengths: Tensor  # int64 [G]: tokens known now
    budget: Tensor  # int64 [G]: nodes it may draft next


class Limits(NamedTuple):
    """What bounds the next draft, besides the table of segments."""

    lookahead: int  # cache rows a drafter writes after the known text; 0: it writes none
    branching: bool  # drafts are trees: nodes say nothing of their length


def walk(
    drawn: Tensor, first: Tensor, draft: Draft, segments: Tensor, history: Tensor, limit: Tensor,
    counts: Tensor | None, limits: Limits,
) -> Walked:  # fmt: skip
    """Follow the drawn tokens; `segments` is the pass's int64 [8, G] table, `limit` [S] where requests end."""
    groups, nodes = draft.tokens.shape
    kind = {"dtype": torch.int64, "device": drawn.device}
    out = Walked(
        torch.empty(groups, nodes + 3, **kind), torch.empty(groups, nodes, **kind),
        torch.empty(groups, **kind), torch.empty(groups, **kind),
    )  # fmt: skip
    _walk[(groups,)](
        drawn, first, draft.tokens, draft.parents, segments, history, limit, drawn if counts is None else counts, *out,
        segments.stride(0), history.stride(0), 0 if counts is None else counts.stride(0), nodes,
        COUNTED=counts is not None, BRANCHING=limits.branching, LOOKAHEAD=limits.lookahead,
        NODES=triton.next_power_of_2(max(2, nodes)), num_warps=1,
    )  # fmt: skip
    return out


@triton.jit
def _walk(
    drawn, first, tokens, parents, segments, history, limit, counts, summary, path, lengths, budget,
    field, history_stride, counts_stride, nodes_wide,
    COUNTED: tl.constexpr, BRANCHING: tl.constexpr, LOOKAHEAD: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    g = tl.program_id(0)
    n = tl.arange(0, NODES)
    root = tl.load(first + g)
    active = root >= 0
    slot = tl.load(segments + g)
    ends = tl.load(segments + field + g) + tl.load(segments + 2 * field + g)
    real = (n < tl.load(segments + 3 * field + g)) & active
    token = tl.load(tokens + g * nodes_wide + n, mask=real, other=-1)
    parent = tl.load(parents + g * nodes_wide + n, mask=real, other=-2)
    agrees = real & (tl.load(drawn + root + 1 + parent, mask=real, other=-1) == token) & (token >= 0)

    line = summary + g * (nodes_wide + 3)
    tl.store(path + g * nodes_wide + n, tl.full([NODES], -1, tl.int64), mask=n < nodes_wide)
    tl.store(line + 3 + n, tl.full([NODES], -1, tl.int64), mask=n < nodes_wide)
    tl.debug_barrier()  # the blanks are down before anything is written over them
    said = tl.load(drawn + root, mask=active, other=-1)
    tl.store(line + 2, said)
    past = history + slot * history_stride + ends
    if active:
        _say(past, counts + slot * counts_stride, said, COUNTED)
    node = tl.min(tl.where(agrees & (parent == -1), n, NODES), 0)  # of twins the first
    accepted = 0
    while node < NODES:
        tl.store(path + g * nodes_wide + accepted, node.to(tl.int64))
        accepted += 1
        said = tl.load(drawn + root + 1 + node)
        tl.store(line + 2 + accepted, said)
        _say(past + accepted, counts + slot * counts_stride, said, COUNTED)
        node = tl.min(tl.where(agrees & (parent == node), n, NODES), 0)
    emitted = tl.where(active, accepted + 1, 0)
    tl.store(line, accepted)
    tl.store(line + 1, emitted)
    length = ends + emitted
    tl.store(lengths + g, length)
    left = tl.load(limit + slot) - length
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
def _say(past, counts, token, COUNTED: tl.constexpr):
    """Write a token to the history, and count it where penalties ask."""
    tl.store(past, token)
    if COUNTED:
        tl.atomic_add(counts + token, 1)


def depths(draft: Draft) -> Tensor:
    """How deep each tree goes, int64 [G]."""
    groups, nodes = draft.parents.shape
    out = torch.empty_like(draft.count)
    wide = triton.next_power_of_2(max(2, nodes))
    _depths[(groups,)](draft.parents, draft.count, out, nodes, draft.parents.stride(0), LEVELS=nodes.bit_length(), NODES=wide)
    return out


@triton.jit
def _depths(parents, count, out, nodes, stride, LEVELS: tl.constexpr, NODES: tl.constexpr):
    g, n = tl.program_id(0), tl.arange(0, NODES)
    depth, _ = shape_of(tl.load(parents + g * stride + n, mask=n < nodes, other=-1), n, LEVELS, NODES)
    tl.store(out + g, tl.max(tl.where(n < tl.load(count + g), depth, 0), 0))
