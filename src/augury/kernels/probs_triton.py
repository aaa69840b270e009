"""The target's distribution in Triton: `probabilities` of kernels/verify_probs.py, and single entries of it.

The floor of every line comes from the draw's search, so nothing is sorted; a line's mass is a sum of integers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import libdevice

from augury.kernels.draw_triton import EXACT, Searched, searched
from augury.kernels.edits_triton import NEVER, padded, scores
from augury.kernels.floor_triton import INFINITE, UNIT, distance_of, distances, masses, sum_of, z_of
from augury.kernels.peak_triton import highest, warps_of
from augury.verify.sampling import Draws, SlotSampling


class RowProbs(NamedTuple):
    """What a line's distribution depends on besides its scores."""

    token: Any  # int64 [L]: the certain token of a line that is not sampled
    floor: Any  # int32 [L]: the largest distance that is kept
    mass: Any  # int64 [L, C]: of what is kept


def row_probs(
    logits: Tensor, draws: Draws, sampling: SlotSampling, chunk: int | None = None
) -> tuple[Searched, RowProbs]:
    """Everything that the probability of a token depends on, for every line."""
    found = searched(logits, draws, sampling, chunk, racing=False)
    plan = found.plan
    probs = RowProbs(found.out, plan.search.floor, torch.empty_like(plan.search.total))
    if not draws.greedy:
        weigh[plan.lines, plan.chunks](
            *found.head,
            probs,
            plan.chunks,
            CHUNK=plan.chunk,
            CHUNKS=padded(plan.chunks),
            BARS=found.bars,
            num_warps=warps_of(plan.chunk, 16),
            maxnreg=64,
            **EXACT,
        )
    return found, probs


def probabilities(logits: Tensor, draws: Draws, sampling: SlotSampling, chunk: int | None = None) -> Tensor:
    """The distribution of the target's token at every line of [L, V] logits of any float, float32 [L, V]."""
    found, probs = row_probs(logits, draws, sampling, chunk)
    plan = found.plan
    out = torch.empty(plan.lines, plan.vocab, dtype=torch.float32, device=logits.device)
    write_probs[plan.lines, plan.chunks](
        *found.head,
        probs,
        out,
        plan.chunks,
        CHUNK=plan.chunk,
        CHUNKS=padded(plan.chunks),
        BARS=found.bars,
        GREEDY=draws.greedy,
        num_warps=warps_of(plan.chunk, 16),
        **EXACT,
    )
    return out


@triton.jit
def weigh(
    rows,
    stride,
    vocab,
    table,
    edits,
    peaks,
    probs,
    chunks,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    BARS: tl.constexpr,
):
    """The mass that one chunk of one line keeps."""
    line, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(rows.slots + line)
    temperature = tl.load(table.temperature + slot)
    top, _ = highest(peaks.top, peaks.token, line, chunks, CHUNKS)
    if (temperature <= 0) | (top == NEVER):
        return
    place, floor = line * chunks + chunk, tl.load(probs.floor + line)
    nearest = distance_of(tl.load(peaks.top + place), top, temperature)
    if (nearest > floor) | (nearest == INFINITE):  # nothing of it is kept, or all is barred
        tl.store(probs.mass + place, tl.zeros((), tl.int64))
        return
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = tokens < vocab
    x = scores(rows, tokens, inside, line, slot, stride, vocab, table, edits, BARS)
    distance = distances(x, top, temperature)
    kept = inside & (distance <= floor)
    tl.store(probs.mass + place, tl.sum(tl.where(kept, masses(distance), 0)))


@triton.jit
def probs_at(
    tokens,
    inside,
    line,
    rows,
    stride,
    vocab,
    table,
    edits,
    peaks,
    probs,
    chunks,
    CHUNKS: tl.constexpr,
    BARS: tl.constexpr,
    GREEDY: tl.constexpr,
):
    """The probabilities of some tokens of one line, float32; 0 outside the vocabulary."""
    certain = tl.where(inside & (tokens == tl.load(probs.token + line)), 1.0, 0.0)
    if GREEDY:
        return certain
    else:
        slot = tl.load(rows.slots + line)
        temperature = tl.load(table.temperature + slot)
        top, _ = highest(peaks.top, peaks.token, line, chunks, CHUNKS)
        if (temperature > 0) & (top > NEVER):
            x = scores(rows, tokens, inside, line, slot, stride, vocab, table, edits, BARS)
            distance = distances(x, top, temperature)
            mass = tl.maximum(sum_of(probs.mass, line, chunks, CHUNKS), 1)
            scale = (tl.full((), UNIT, tl.float64) / mass.to(tl.float64)).to(tl.float32)
            kept = inside & (distance <= tl.load(probs.floor + line))
            certain = tl.where(kept, libdevice.exp(z_of(distance)) * scale, 0.0)
        return certain


@triton.jit
def write_probs(
    rows,
    stride,
    vocab,
    table,
    edits,
    peaks,
    probs,
    out,
    chunks,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    BARS: tl.constexpr,
    GREEDY: tl.constexpr,
):
    """Write one chunk of one line's distribution."""
    line, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = tokens < vocab
    p = probs_at(tokens, inside, line, rows, stride, vocab, table, edits, peaks, probs, chunks, CHUNKS, BARS, GREEDY)
    tl.store(out + line * vocab + tokens, p, inside)
