"""Which experts run which rows, on the GPU: the router's choice, and rows sorted by expert in blocks of one size.

Nothing waits for the host, and every shape follows from the number of rows, so a graph can be captured: a table has
room for the most blocks that so many rows can need, and names no expert for those that are not needed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 1024  # pairs that are looked at together
# A histogram is sure to be right where every thread has a value of its own and every lane of a warp a bin.
FEWEST_PAIRS, FEWEST_BINS = 128, 32


class ExpertBlocks(NamedTuple):
    """Pairs of row and place, counted row by row, in blocks that one expert runs."""

    order: Tensor  # int32 [blocks * size]: pairs by expert; the number of pairs where a block is not full
    owner: Tensor  # int32 [blocks]: each block's expert, -1 for none


def route(logits: Tensor, count: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """See Ops.route."""
    rows, experts = logits.shape
    shares = torch.empty(rows, count, dtype=torch.float32, device=logits.device)
    chosen = torch.empty(rows, count, dtype=torch.int64, device=logits.device)
    _route[(rows,)](
        logits,
        shares,
        chosen,
        experts,
        count,
        NORMALISE=normalise,
        WIDTH=triton.next_power_of_2(experts),
        PLACES=triton.next_power_of_2(count),
        num_warps=1 if experts <= 256 else 4,
    )
    return shares, chosen


def most_blocks(pairs: int, experts: int, size: int) -> int:
    """How many blocks so many pairs can need at most: each expert that runs any may have one block that is not full."""
    return min(pairs, experts) + pairs // size


def group(chosen: Tensor, experts: int, size: int) -> ExpertBlocks:
    """Sort the pairs of chosen [R, k] by expert, in blocks of `size`."""
    pairs, device = chosen.numel(), chosen.device
    blocks = most_blocks(pairs, experts, size)
    order = torch.empty(blocks * size, dtype=torch.int32, device=device)
    owner = torch.empty(blocks, dtype=torch.int32, device=device)
    _group[(experts + 1,)](
        chosen,
        order,
        owner,
        pairs,
        blocks,
        experts,
        SIZE=size,
        CHUNK=min(CHUNK, max(FEWEST_PAIRS, triton.next_power_of_2(pairs))),
        WIDTH=max(FEWEST_BINS, triton.next_power_of_2(experts)),
    )
    return ExpertBlocks(order, owner)


@triton.jit
def _route(logits, shares, chosen, experts, count, NORMALISE: tl.constexpr, WIDTH: tl.constexpr, PLACES: tl.constexpr):
    row, number, place = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH), tl.arange(0, PLACES)
    there = number < experts
    line = tl.load(logits + row * experts + number, mask=there, other=float("-inf")).to(tl.float32)
    likely = tl.where(there, tl.exp(line - tl.max(line, 0)), 0.0)
    total, taken = tl.sum(likely, 0), 0.0
    left = tl.where(there, likely, -1.0)
    best, share = tl.zeros([PLACES], tl.int32), tl.zeros([PLACES], tl.float32)
    for i in range(count):
        # In range whatever the logits are: with NaN no expert is the likeliest.
        one = tl.minimum(tl.argmax(left, 0), experts - 1)
        height = tl.max(left, 0)
        best, share = tl.where(place == i, one, best), tl.where(place == i, height, share)
        taken += height
        left = tl.where(number == one, -1.0, left)
    share = share / (taken if NORMALISE else total)
    wanted = place < count
    tl.store(shares + row * count + place, share, mask=wanted)
    tl.store(chosen + row * count + place, best.to(tl.int64), mask=wanted)


@triton.jit(do_not_specialize=["pairs", "blocks"])
def _group(chosen, order, owner, pairs, blocks, experts, SIZE: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr):
    """One program per expert, which counts all experts' pairs to know where its own begin; one more ends the table."""
    mine, number, ahead = tl.program_id(0), tl.arange(0, WIDTH), tl.arange(0, CHUNK)
    counts = tl.zeros([WIDTH], tl.int32)
    for begin in range(0, pairs, CHUNK):
        there = begin + ahead < pairs
        expert = tl.load(chosen + begin + ahead, mask=there, other=0).to(tl.int32)
        counts += tl.histogram(expert, WIDTH, mask=there)
    needed = (counts + SIZE - 1) // SIZE
    first = tl.sum(tl.where(number < mine, needed, 0), 0)
    own = tl.sum(tl.where(number == mine, needed, 0), 0)
    if mine == experts:
        own = blocks - first
    for begin in range(0, own, CHUNK):
        here = begin + ahead
        tl.store(owner + first + here, tl.where(mine < experts, mine, -1), mask=here < own)
    at = first * SIZE
    for begin in range(0, pairs, CHUNK):
        there = begin + ahead < pairs
        expert = tl.load(chosen + begin + ahead, mask=there, other=0).to(tl.int32)
        hit = there & (expert == mine)
        tl.store(order + at + tl.cumsum(hit.to(tl.int32), 0) - 1, begin + ahead, mask=hit)
        at += tl.sum(hit.to(tl.int32), 0)
    rest = at + tl.arange(0, SIZE)
    tl.store(order + rest, pairs, mask=rest < (first + own) * SIZE)
