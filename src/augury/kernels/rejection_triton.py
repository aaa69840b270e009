"""What the rejection rules share over chains in Triton, without distributions in memory; see verify/rejection.py.

Of every line only the probability of its child's token is computed, and of the line where a group's verdict ends, the
race over what its distribution leaves after the child that was refused. A rule decides where that is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import libdevice

from augury.kernels.draw_triton import EXACT
from augury.kernels.edits_triton import NEVER, padded
from augury.kernels.peak_triton import NO_TOKEN, highest, warps_of
from augury.kernels.philox_triton import noise_of_block
from augury.kernels.probs_triton import probs_at, row_probs
from augury.verify import noise
from augury.verify.sampling import Draws, Outcome, SlotSampling
from augury.verify.tree import Draft

RESAMPLE = tl.constexpr(noise.RESAMPLE)
FEW = tl.constexpr(16)  # a single token is read in a small block


class Chain(NamedTuple):
    """The drafts of all groups, and what they are tested with."""

    first: Any  # int64 [G]: the line of each root, -1 for an inactive group
    tokens: Any  # int64 [G, N]
    parents: Any  # int64 [G, N]
    count: Any  # int64 [G]
    probs: Any  # float32 [G, N, W] or None
    tests: Any  # float32 [G, N]
    chance: Any  # float32 [G, N]: of each token under the target


class Ends(NamedTuple):
    """Where each group's verdict ends, and the race of its last token."""

    line: Any  # int64 [G]: the line of the distribution, -1 for an inactive group
    refused: Any  # int64 [G]: the node that was refused there, or -1
    carry: Any  # float32 [G]: what the distribution is multiplied by before the refused proposal is taken off
    total: Any  # float64 [G, C]: what the refusal leaves
    score: Any  # float32 [G, C]
    token: Any  # int32 [G, C]


class OutcomeTensors(NamedTuple):
    """Room for an Outcome of verify/sampling.py, as kernels take it."""

    emitted: Any
    emitted_count: Any
    accepted: Any
    path: Any


class ChainPass(NamedTuple):
    """What a rule needs to know of one forward pass."""

    lines: tuple[Any, ...]  # what `probs_at` takes, from the rows on
    chain: Chain
    ends: Ends
    out: OutcomeTensors
    shape: tuple[int, int, int]  # chunks, nodes, width of the proposals
    common: dict[str, Any]
    wide: dict[str, Any]  # of kernels that read a chunk each


def runs(draft: Draft) -> bool:
    """Whether these kernels support a draft: chains whose proposals are distributions as they stand."""
    return not draft.branching and not draft.distinct


def prepare(
    logits: Tensor,
    draws: Draws,
    sampling: SlotSampling,
    first: Tensor,
    draft: Draft,
    tests: Tensor,
    chunk: int | None = None,
) -> ChainPass:
    """Find the chance of every drafted token, and make room for what a rule decides."""
    found, probs = row_probs(logits, draws, sampling, chunk)
    plan, (groups, nodes), device = found.plan, draft.tokens.shape, logits.device
    chain = Chain(first, draft.tokens, draft.parents, draft.count, draft.probs, tests, torch.empty_like(tests))
    common: dict[str, Any] = {"CHUNKS": padded(plan.chunks), "BARS": found.bars, "GREEDY": draws.greedy, **EXACT}
    if nodes:
        find_chances[groups, nodes](*found.head, probs, chain, plan.chunks, **common, num_warps=1)

    def room(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(groups, *shape, dtype=dtype, device=device)

    i64, f32, chunks = torch.int64, torch.float32, plan.chunks
    out = OutcomeTensors(room(i64, nodes + 1), room(i64), room(i64), room(i64, nodes))
    race = room(torch.float64, chunks), room(f32, chunks), room(torch.int32, chunks)
    wide = {"CHUNK": plan.chunk, "num_warps": warps_of(plan.chunk, 16), **common}
    width = 0 if draft.probs is None else draft.probs.shape[2]
    ends = Ends(room(i64), room(i64), room(f32), *race)
    return ChainPass((*found.head, probs), chain, ends, out, (chunks, nodes, width), common, wide)


def last_tokens(case: ChainPass, seeds: Tensor, starts: Tensor) -> Outcome:
    """Draw the token that ends each group, from what its refusal leaves."""
    chunks, nodes, _ = case.shape
    groups, ends, out = len(case.chain.first), case.ends, case.out
    sum_left[groups, chunks](*case.lines, case.chain, ends, *case.shape, **case.wide)
    race_left[groups, chunks](*case.lines, case.chain, ends, out.accepted, seeds, starts, *case.shape, **case.wide)
    finish[(groups,)](ends, out.emitted, out.accepted, chunks, nodes, CHUNKS=case.common["CHUNKS"], num_warps=1)
    return Outcome(*out)


@triton.jit
def find_chances(
    rows,
    stride,
    vocab,
    table,
    edits,
    peaks,
    probs,
    chain,
    chunks,
    CHUNKS: tl.constexpr,
    BARS: tl.constexpr,
    GREEDY: tl.constexpr,
):
    """The chance of one node's token under the target at its parent."""
    group, node, nodes = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    root = tl.load(chain.first + group)
    place = group * nodes + node
    token = tl.load(chain.tokens + place)
    real = (root >= 0) & (node < tl.load(chain.count + group)) & (token >= 0) & (token < vocab)
    chance = tl.zeros((), tl.float32)
    if real:
        tokens = token.to(tl.int32) + tl.arange(0, FEW) * 0
        line = root + 1 + tl.load(chain.parents + place)
        inside = tokens >= 0
        p = probs_at(
            tokens, inside, line, rows, stride, vocab, table, edits, peaks, probs, chunks, CHUNKS, BARS, GREEDY
        )
        chance = tl.max(p)
    tl.store(chain.chance + place, chance)


@triton.jit
def drafted_chance(chain, place, token, tried, width):
    """The probability of a node's token under its drafter, float64; rounding must not put it above 1."""
    drafted = tl.full((), 1.0, tl.float64)
    if chain.probs is not None:
        q = tl.load(chain.probs + place * width + token, tried & (token < width), 0.0)
        drafted = tl.minimum(clean(q), 1.0).to(tl.float64)
    return drafted


@triton.jit
def close(chain, ends, out, group, taken, refused, carry, nodes):
    """Write down one group's verdict: the first `taken` nodes of its chain; what is past them is -1."""
    root = tl.load(chain.first + group)
    for node in range(nodes):
        kept = node < taken
        token = tl.load(chain.tokens + group * nodes + node)
        tl.store(out.path + group * nodes + node, tl.where(kept, node, -1))
        tl.store(out.emitted + group * (nodes + 1) + node, tl.where(kept, token, -1))
    tl.store(out.emitted + group * (nodes + 1) + nodes, -1)
    tl.store(out.accepted + group, taken)
    tl.store(out.emitted_count + group, tl.where(root >= 0, taken + 1, 0))
    tl.store(ends.line + group, tl.where(root >= 0, root + taken, -1))
    tl.store(ends.refused + group, refused)
    tl.store(ends.carry + group, carry)


@triton.jit
def clean(p):
    """Probabilities without NaN, infinities and negative numbers."""
    return tl.where((p > 0) & (p < float("inf")), p, 0.0)


@triton.jit
def left_at(tokens, inside, p, carry, place, chain, width):
    """What of carry * p the proposal of one node does not cover."""
    if chain.probs is None:
        q = tl.where(tokens == tl.load(chain.tokens + place), 1.0, 0.0)
    else:
        q = clean(tl.load(chain.probs + place * width + tokens, inside & (tokens < width), 0.0))
    return tl.maximum(p * carry - q, 0.0)


@triton.jit
def sum_left(
    rows,
    stride,
    vocab,
    table,
    edits,
    peaks,
    probs,
    chain,
    ends,
    chunks,
    nodes,
    width,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    BARS: tl.constexpr,
    GREEDY: tl.constexpr,
):
    """The sum of what a refusal leaves in one chunk of a group's last line."""
    group, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line, refused = tl.load(ends.line + group), tl.load(ends.refused + group)
    if (line < 0) | (refused < 0):
        return
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = tokens < vocab
    p = probs_at(tokens, inside, line, rows, stride, vocab, table, edits, peaks, probs, chunks, CHUNKS, BARS, GREEDY)
    left = left_at(tokens, inside, p, tl.load(ends.carry + group), group * nodes + refused, chain, width)
    tl.store(ends.total + group * chunks + chunk, tl.sum(left.to(tl.float64)))


@triton.jit
def race_left(
    rows,
    stride,
    vocab,
    table,
    edits,
    peaks,
    probs,
    chain,
    ends,
    accepted,
    seeds,
    starts,
    chunks,
    nodes,
    width,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    BARS: tl.constexpr,
    GREEDY: tl.constexpr,
):
    """The best token of one chunk: the argmax of the logarithm of what is left plus noise."""
    group, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line, refused = tl.load(ends.line + group), tl.load(ends.refused + group)
    if line < 0:
        return
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = tokens < vocab
    p = probs_at(tokens, inside, line, rows, stride, vocab, table, edits, peaks, probs, chunks, CHUNKS, BARS, GREEDY)
    if refused >= 0:
        part = tl.arange(0, CHUNKS)
        total = tl.sum(tl.load(ends.total + group * chunks + part, part < chunks, 0.0))
        if total > 0:  # only rounding refuses a token when nothing would be left; then the distribution stays
            scale = (tl.full((), 1.0, tl.float64) / total).to(tl.float32)
            p = left_at(tokens, inside, p, tl.load(ends.carry + group), group * nodes + refused, chain, width) * scale
    best, winner = tl.full((), NEVER, tl.float32), tl.full((), NO_TOKEN, tl.int32)
    if tl.max(p) > 0:
        position = tl.load(starts + group) + tl.load(accepted + group)
        draw = noise_of_block(chunk * CHUNK, position, tl.load(seeds + group), CHUNK, RESAMPLE)
        score = tl.where(inside, libdevice.log(p) + draw, NEVER)
        best = tl.max(score)
        winner = tl.min(tl.where(inside & (score == best), tokens, NO_TOKEN))
    tl.store(ends.score + group * chunks + chunk, best)
    tl.store(ends.token + group * chunks + chunk, winner)


@triton.jit
def finish(ends, emitted, accepted, chunks, nodes, CHUNKS: tl.constexpr):
    """Put the last token of one group after those it accepted."""
    group = tl.program_id(0).to(tl.int64)
    if tl.load(ends.line + group) >= 0:
        _, token = highest(ends.score, ends.token, group, chunks, CHUNKS)
        token = tl.where(token == NO_TOKEN, 0, token)
        tl.store(emitted + group * (nodes + 1) + tl.load(accepted + group), token.to(tl.int64))
