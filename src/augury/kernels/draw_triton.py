"""The target's token at every line (row of logits) in Triton: `draw` of kernels/verify.py, token for token.

A greedy line is read once, a sampled one twice, and up to three times more where top-k or top-p narrows it. What is
left is a short list: tokens that may still be cut, and those of the kept that may win. Everything about a line is
looked up on the device, so one captured graph serves every mix of requests.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import libdevice

from augury.kernels.edits_triton import NEVER, DrawRows, edits_of, padded, scores, table_of
from augury.kernels.floor_triton import (
    CANDIDATES,
    INFINITE,
    READS,
    Search,
    distance_of,
    distances,
    filters,
    masses,
    narrow,
    tighten,
    z_of,
)
from augury.kernels.peak_triton import NO_TOKEN, Peaks, blank_peaks, chunk_of, find_peaks, highest, warps_of
from augury.kernels.philox_triton import noise_of_tokens, uniform, words_of_block
from augury.kernels.settle_triton import TARGET, settle
from augury.verify.sampling import Draws, SlotSampling

SLACK = tl.constexpr(1e-3)  # covers the rounding of bounds
FEW = tl.constexpr(64)
CAPACITY = 8192  # tokens of a bracket that are listed; with more, one program reads the line again and again
SETTLE_BLOCK, WAYS = 2048, 4
EXACT = {"enable_fp_fusion": False, "enable_reflect_ftz": False}  # round as torch's kernels do, one operation at a time


class DrawPlan(NamedTuple):
    """The grid and the buffers of one draw."""

    lines: int
    vocab: int
    chunk: int
    chunks: int
    peaks: Peaks
    search: Search


class Searched(NamedTuple):
    """What is known about every line once its floor is found."""

    plan: DrawPlan
    head: tuple[Any, ...]  # rows, stride, vocabulary, table, edits and peaks, as kernels take them
    bars: int
    out: Tensor  # int64 [L]: the token drawn


def draw(logits: Tensor, draws: Draws, sampling: SlotSampling, chunk: int | None = None) -> Tensor:
    """The target's token for every line of [L, V] logits of any float, int64 [L]."""
    return searched(logits, draws, sampling, chunk).out


def searched(
    logits: Tensor, draws: Draws, sampling: SlotSampling, chunk: int | None = None, racing: bool = True
) -> Searched:
    """Peaks and floors of every line, and the token drawn; without racing, a token only where nothing is sampled."""
    plan = plan_for(logits, draws, sampling, chunk)
    out = torch.empty(plan.lines, dtype=torch.int64, device=logits.device)
    rows, table, edits = DrawRows(logits, draws.slots, draws.positions), table_of(sampling), edits_of(draws, sampling)
    grid, head = (plan.lines, plan.chunks), (rows, logits.stride(0), plan.vocab, table, edits, plan.peaks)
    bars, join = sampling.stops.shape[1] + sampling.bad_words.shape[1], padded(plan.chunks)
    wide: dict[str, Any] = {"CHUNK": plan.chunk, "BARS": bars, **EXACT}
    find_peaks[grid](*head, plan.search, **wide, num_warps=warps_of(plan.chunk, 16), maxnreg=64)
    if not draws.greedy:
        rough = {**wide, "enable_fp_fusion": True, "num_warps": warps_of(plan.chunk, 32), "maxnreg": 128}
        sums: dict[str, Any] = {"COUNT": CANDIDATES, "CHUNKS": join}
        for read in range(READS):
            narrow[grid](*head, plan.search, plan.chunks, FIRST=read == 0, **sums, **rough)
            tighten[(plan.lines,)](
                draws.slots,
                plan.vocab,
                table,
                plan.peaks,
                plan.search,
                plan.chunks,
                FIRST=read == 0,
                LAST=read == READS - 1,
                num_warps=1,
                **sums,
            )
        list_contenders[grid](
            *head,
            plan.search,
            plan.chunks,
            CHUNKS=join,
            CAPACITY=CAPACITY,
            RACING=racing,
            **wide,
            num_warps=warps_of(plan.chunk, 16),
            maxnreg=128,
        )
    settle[(plan.lines,)](
        *head,
        plan.search,
        out,
        plan.chunks,
        CHUNKS=join,
        BARS=bars,
        BLOCK=SETTLE_BLOCK,
        WAYS=WAYS,
        CAPACITY=CAPACITY,
        GREEDY=draws.greedy,
        RACING=racing,
        num_warps=8,
        **EXACT,
    )
    return Searched(plan, head, bars, out)


def plan_for(logits: Tensor, draws: Draws, sampling: SlotSampling, chunk: int | None) -> DrawPlan:
    """Allocate what the kernels pass to each other; nothing is as wide as the vocabulary."""
    (lines, vocab), device = logits.shape, logits.device
    chunk = chunk or chunk_of(vocab)
    chunks = triton.cdiv(vocab, chunk)
    resort = not draws.plain and (sampling.bias is not None or draws.masks is not None)

    def room(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(lines, *shape, dtype=dtype, device=device)

    f32, i32, i64 = torch.float32, torch.int32, torch.int64
    peaks = blank_peaks(lines, chunks, device, resort)
    capacity = 0 if draws.greedy else CAPACITY
    search = Search(
        room(f32, chunks, CANDIDATES),
        room(i64, chunks),
        room(i64, chunks),
        room(i32, 2),
        room(i32),
        room(i32, capacity),
        room(i32, capacity),
        room(f32),
        room(i32),
    )
    return DrawPlan(lines, vocab, chunk, chunks, peaks, search)


@triton.jit
def list_contenders(
    rows,
    stride,
    vocab,
    table,
    edits,
    peaks,
    search,
    chunks,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    BARS: tl.constexpr,
    CAPACITY: tl.constexpr,
    RACING: tl.constexpr,
):
    """List the tokens of one chunk that the bracket leaves open, and those of the surely kept that may win.

    Exact noise is computed for the list alone: a few tokens a line.
    """
    line, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(rows.slots + line)
    temperature, k, _p, allowed = filters(slot, vocab, table)
    if temperature <= 0:
        return
    top, _ = highest(peaks.top, peaks.token, line, chunks, CHUNKS)
    if top == NEVER:
        return
    low, high = tl.load(search.bracket + line * 2), tl.load(search.bracket + line * 2 + 1)
    place = line * chunks + chunk
    if (low == high) & (not RACING):
        return
    nearest = distance_of(tl.load(peaks.top + place), top, temperature)
    if (nearest > high) | (nearest == INFINITE):  # all of this chunk is cut, or barred
        tl.store(search.below + place, tl.zeros((), tl.int64))
        return
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = tokens < vocab
    x = scores(rows, tokens, inside, line, slot, stride, vocab, table, edits, BARS)
    distance = distances(x, top, temperature)
    possible = inside & (distance < INFINITE)  # a grammar bars most tokens: a list of them would be the longest part
    listed = possible & (distance <= high) & (distance > low)
    if RACING:
        kept = possible & (distance <= tl.minimum(low, allowed))
        if tl.sum(kept.to(tl.int32)) > FEW:  # noise for a few is less work than bounds for the chunk
            position, seed = tl.load(rows.positions + line), tl.load(table.seed + slot)
            most, least = bounds(z_of(distance), chunk * CHUNK, position, seed, CHUNK)
            lead = tl.max(tl.where(kept, least, NEVER))
            before = tl.atomic_max(search.lead + line, lead, sem="relaxed")  # of chunks that came first, whichever
            kept = kept & (most >= tl.maximum(lead, before) - SLACK)
        listed = listed | kept
    list_open(listed, distance, tokens, search, line, CAPACITY)
    if low < high:
        under = inside & (distance <= low)
        if k > 0:
            tl.store(search.below + place, tl.sum(under.to(tl.int32)).to(tl.int64))
        else:
            tl.store(search.below + place, tl.sum(tl.where(under, masses(distance), 0)))


@triton.jit
def bounds(z, start, position, seed, BLOCK: tl.constexpr):
    """The most and the least that z + noise can be, of the tokens from `start` on.

    The noise is -log of an exponential E = -log(1 - v), and v <= E <= v / (1 - v).
    """
    v = uniform(words_of_block(start, position, seed, BLOCK, TARGET))
    most = z - libdevice.fast_logf(v)
    return most, most + libdevice.fast_logf(1.0 - v)


@triton.jit
def race_block(tokens, z, kept, start, position, seed, BLOCK: tl.constexpr):
    """The best of z + noise and its lowest token, with exact noise for those alone that bounds cannot rule out."""
    most, least = bounds(z, start, position, seed, BLOCK)
    open_ = kept & (most >= tl.max(tl.where(kept, least, NEVER)) - SLACK)
    best, winner = tl.full((), NEVER, tl.float32), tl.full((), NO_TOKEN, tl.int32)
    token = tl.min(tl.where(open_, tokens, NO_TOKEN))
    while token < NO_TOKEN:
        own = tl.max(tl.where(tokens == token, z, NEVER))
        score = own + tl.max(noise_of_tokens(token + tl.arange(0, 2) * 0, position, seed, TARGET))
        winner = tl.where(score > best, token, winner)
        best = tl.maximum(best, score)
        token = tl.min(tl.where(open_ & (tokens > token), tokens, NO_TOKEN))
    return best, winner


@triton.jit
def list_open(open_, distance, tokens, search, line, CAPACITY: tl.constexpr):
    """Add some tokens of a chunk to the line's list; its order does not matter."""
    if tl.max(open_.to(tl.int32)) > 0:
        same = tokens * 0
        place = tl.atomic_add(search.listed + line + same, same + 1, open_, sem="relaxed")  # a scan takes far longer
        room = open_ & (place < CAPACITY)
        tl.store(search.distance + line * CAPACITY + place, distance, room)
        tl.store(search.token + line * CAPACITY + place, tokens, room)
