"""`block` over chains in Triton: block verification as verify/rejection.py has it, verdict for verdict.

The chance that a block ends no earlier than at a node needs one sum over the vocabulary for every node with a child,
where drafts are sampled; for certain drafts it needs none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.draw_triton import EXACT
from augury.kernels.probs_triton import probs_at
from augury.kernels.rejection_triton import close, drafted_chance, last_tokens, left_at, prepare
from augury.verify.sampling import Draws, Outcome, SlotSampling
from augury.verify.tree import Draft


class Heights(NamedTuple):
    """What every node's acceptance test depends on."""

    depth: Any  # int64 [G]: nodes that hang below one another from the root
    carry: Any  # float64 [G, N]: P of block verification
    left: Any  # float64 [G, N, C]: what the child's proposal does not cover of carry * p, or None for certain drafts


def block(
    logits: Tensor,
    draws: Draws,
    sampling: SlotSampling,
    first: Tensor,
    draft: Draft,
    tests: Tensor,
    seeds: Tensor,
    starts: Tensor,
    chunk: int | None = None,
) -> Outcome:
    """What `rejection.block` and `verdict.finish` decide, given acceptance noise [G, N] and the last token's key."""
    case = prepare(logits, draws, sampling, first, draft, tests, chunk)
    (chunks, nodes, width), groups = case.shape, len(first)
    carry = torch.empty(groups, nodes, dtype=torch.float64, device=logits.device)
    left = None if draft.probs is None else carry.new_empty(groups, nodes, chunks)
    heights = Heights(torch.empty_like(first), carry, left)
    descend[(groups,)](case.chain, heights, nodes, width, num_warps=1, **EXACT)
    if left is not None and nodes:
        sum_heights[groups * nodes, chunks](*case.lines, case.chain, heights, *case.shape, **case.wide)
    join = case.common["CHUNKS"]
    find_end[(groups,)](case.chain, heights, case.ends, case.out, chunks, nodes, CHUNKS=join, num_warps=1, **EXACT)
    return last_tokens(case, seeds, starts)


@triton.jit
def descend(chain, heights, nodes, width):
    """P of every node of one group's chain: that of its parent times p / q, at most 1."""
    group = tl.program_id(0).to(tl.int64)
    root, count = tl.load(chain.first + group), tl.load(chain.count + group)
    count = tl.where(root >= 0, count, 0)
    depth, carry = root * 0, tl.full((), 1.0, tl.float64)
    for node in range(nodes):
        place = group * nodes + node
        token = tl.load(chain.tokens + place)
        linked = (depth == node) & (node < count) & (token >= 0) & (tl.load(chain.parents + place) == node - 1)
        drafted = drafted_chance(chain, place, token, linked, width)
        ratio = tl.where(drafted > 0, tl.load(chain.chance + place).to(tl.float64) / drafted, 0.0)
        carry = tl.where(linked, tl.minimum(carry * ratio, 1.0), carry)
        tl.store(heights.carry + place, carry)
        depth += linked.to(tl.int64)
    tl.store(heights.depth + group, depth)


@triton.jit
def sum_heights(
    rows,
    stride,
    vocab,
    table,
    edits,
    peaks,
    probs,
    chain,
    heights,
    chunks,
    nodes,
    width,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    BARS: tl.constexpr,
    GREEDY: tl.constexpr,
):
    """Sum what the child's proposal does not cover of one chunk of a node's distribution times its P."""
    place, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group, node = place // nodes, place % nodes
    if node + 1 >= tl.load(heights.depth + group):
        return
    line = tl.load(chain.first + group) + 1 + node
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = tokens < vocab
    p = probs_at(tokens, inside, line, rows, stride, vocab, table, edits, peaks, probs, chunks, CHUNKS, BARS, GREEDY)
    carry = tl.load(heights.carry + place).to(tl.float32)
    left = left_at(tokens, inside, p, carry, place + 1, chain, width)
    tl.store(heights.left + place * chunks + chunk, tl.sum(left.to(tl.float64)))


@triton.jit
def find_end(chain, heights, ends, out, chunks, nodes, CHUNKS: tl.constexpr):
    """The deepest node of one group whose test holds."""
    group = tl.program_id(0).to(tl.int64)
    depth = tl.load(heights.depth + group)
    taken, there = depth * 0, tl.full((), 1.0, tl.float64)
    for node in range(nodes):
        place = group * nodes + node
        mine, leads = tl.load(heights.carry + place), node + 1 < depth
        if heights.left is None:
            left = mine * (1.0 - tl.load(chain.chance + place + 1, leads, 0.0).to(tl.float64))
        else:
            part = tl.arange(0, CHUNKS)
            left = tl.sum(tl.load(heights.left + place * chunks + part, leads & (part < chunks), 0.0))
        scale = left + (1.0 - mine)
        height = tl.where(leads, tl.where(scale > 0, left / tl.where(scale > 0, scale, 1.0), 1.0), mine)
        held = (node < depth) & (tl.load(chain.tests + place).to(tl.float64) < height)
        taken = tl.where(held, node + 1, taken)
        there = tl.where(held, mine, there)
    refused = tl.where(taken < depth, taken, -1)
    close(chain, ends, out, group, taken, refused, there.to(tl.float32), nodes)
