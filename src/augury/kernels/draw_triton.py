"""The target's token at every line in Triton: `draw` of kernels/verify.py, token for token.

A greedy line is read once, a sampled one twice, and twice more where top-k or top-p narrows it. Everything about a line
is looked up on the device, so one captured graph serves every mix of requests.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.edits_triton import NEVER, Rows, edits_of, padded, scores, table_of
from augury.kernels.floor_triton import (
    FIRST, SECOND, Search, bracketed, distances, filters, masses, narrow, needed, part, sum_of, z_of,
)  # fmt: skip
from augury.kernels.peak_triton import (
    NO_TOKEN, Peaks, blank_peaks, chunk_of, find_peaks, highest, last_resort, warps_of,
)  # fmt: skip
from augury.kernels.philox_triton import noise_of_block, noise_of_tokens
from augury.verify import noise
from augury.verify.sampling import Draws, SlotSampling

TARGET = tl.constexpr(noise.TARGET)
CAPACITY = 8192  # tokens of a bracket that are listed; with more, one program reads the line again and again
SETTLE_BLOCK, WAYS = 2048, 4
EXACT = {"enable_fp_fusion": False, "enable_reflect_ftz": False}  # round as torch's kernels do, one operation at a time


class Race(NamedTuple):
    """The best of the tokens that are surely kept, [L, C]."""

    score: Any  # float32
    token: Any  # int32


class Plan(NamedTuple):
    """The grid and the room of one draw."""

    lines: int
    vocab: int
    chunk: int
    chunks: int
    peaks: Peaks
    search: Search
    race: Race


class Searched(NamedTuple):
    """What is known of every line once its floor is."""

    plan: Plan
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
    rows, table, edits = Rows(logits, draws.slots, draws.positions), table_of(sampling), edits_of(draws, sampling)
    grid, head = (plan.lines, plan.chunks), (rows, logits.stride(0), plan.vocab, table, edits, plan.peaks)
    bars, join = sampling.stops.shape[1] + sampling.bad_words.shape[1], padded(plan.chunks)
    wide: dict[str, Any] = {"CHUNK": plan.chunk, "BARS": bars, **EXACT}
    find_peaks[grid](*head, plan.search.listed, **wide, num_warps=warps_of(plan.chunk, 16), maxnreg=64)
    if not draws.greedy:
        rough = {**wide, "enable_fp_fusion": True, "num_warps": warps_of(plan.chunk, 32), "maxnreg": 128}
        for again in (False, True):
            narrow[grid](*head, plan.search, plan.chunks, AGAIN=again, FIRST=FIRST, SECOND=SECOND, CHUNKS=join, **rough)
        run_race[grid](*head, plan.search, plan.race, plan.chunks, SECOND=SECOND, CHUNKS=join, CAPACITY=CAPACITY,
                       RACING=racing, **wide, num_warps=warps_of(plan.chunk, 16), maxnreg=128)  # fmt: skip
    settle[(plan.lines,)](
        *head, plan.search, plan.race, out, plan.chunks, CHUNKS=join, BARS=bars, BLOCK=SETTLE_BLOCK, WAYS=WAYS,
        CAPACITY=CAPACITY, GREEDY=draws.greedy, RACING=racing, num_warps=8, **EXACT,
    )  # fmt: skip
    return Searched(plan, head, bars, out)


def plan_for(logits: Tensor, draws: Draws, sampling: SlotSampling, chunk: int | None) -> Plan:
    """Room for everything the kernels tell each other; nothing is as wide as the vocabulary."""
    (lines, vocab), device = logits.shape, logits.device
    chunk = chunk or chunk_of(lines, vocab)
    chunks = triton.cdiv(vocab, chunk)
    resort = not draws.plain and (sampling.bias is not None or draws.masks is not None)

    def room(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(lines, *shape, dtype=dtype, device=device)

    f32, i32, i64 = torch.float32, torch.int32, torch.int64
    peaks = blank_peaks(lines, chunks, device, resort)
    capacity = 0 if draws.greedy else CAPACITY
    search = Search(
        room(f32, chunks, FIRST), room(f32, chunks, SECOND), room(i64, chunks), room(i64, chunks), room(i32, 4),
        room(i32), room(i32, capacity), room(i32, capacity), room(i32),
    )  # fmt: skip
    return Plan(lines, vocab, chunk, chunks, peaks, search, Race(room(f32, chunks), room(i32, chunks)))


@triton.jit
def run_race(
    rows, stride, vocab, table, edits, peaks, search, race, chunks, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    BARS: tl.constexpr, SECOND: tl.constexpr, CAPACITY: tl.constexpr, RACING: tl.constexpr,
):  # fmt: skip
    """Race the tokens of one chunk that are surely kept, and list those that the bracket leaves open."""
    line, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(rows.slots + line)
    temperature, k, p, allowed = filters(slot, vocab, table)
    if temperature <= 0:
        return
    top, _ = highest(peaks.top, peaks.token, line, chunks, CHUNKS)
    if top == NEVER:
        return
    low, high = bracketed(search, line, slot, vocab, chunks, table, SECOND, CHUNKS)
    place = line * chunks + chunk
    tl.store(search.bracket + line * 4 + 2, low, chunk == 0)
    tl.store(search.bracket + line * 4 + 3, high, chunk == 0)
    if (low == high) & (not RACING):
        return
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = tokens < vocab
    x = scores(rows, tokens, inside, line, slot, stride, vocab, table, edits, BARS)
    distance = distances(x, top, temperature)
    if low < high:
        list_open(inside & (distance > low) & (distance <= high), distance, tokens, search, line, CAPACITY)
        under = inside & (distance <= low)
        if k > 0:
            tl.store(search.below + place, tl.sum(under.to(tl.int32)).to(tl.int64))
        else:
            tl.store(search.below + place, tl.sum(tl.where(under, masses(distance), 0)))
    if not RACING:
        return
    kept = inside & (distance <= tl.minimum(low, allowed))
    best, winner = tl.full((), NEVER, tl.float32), tl.full((), NO_TOKEN, tl.int32)
    if tl.max(kept.to(tl.int32)) > 0:
        noise = noise_of_block(chunk * CHUNK, tl.load(rows.positions + line), tl.load(table.seed + slot), CHUNK, TARGET)
        score = tl.where(kept, z_of(distance) + noise, NEVER)
        best = tl.max(score)
        winner = tl.min(tl.where(kept & (score == best), tokens, NO_TOKEN))
    tl.store(race.score + place, best)
    tl.store(race.token + place, winner)


@triton.jit
def list_open(open_, distance, tokens, search, line, CAPACITY: tl.constexpr):
    """Add a chunk's open tokens to the line's list; its order is of no account."""
    count = tl.sum(open_.to(tl.int32))
    if count > 0:
        place = tl.atomic_add(search.listed + line, count) + tl.cumsum(open_.to(tl.int32)) - 1
        room = open_ & (place < CAPACITY)
        tl.store(search.distance + line * CAPACITY + place, distance, room)
        tl.store(search.token + line * CAPACITY + place, tokens, room)


@triton.jit
def settle(
    rows, stride, vocab, table, edits, peaks, search, race, out, chunks, CHUNKS: tl.constexpr, BARS: tl.constexpr,
    BLOCK: tl.constexpr, WAYS: tl.constexpr, CAPACITY: tl.constexpr, GREEDY: tl.constexpr, RACING: tl.constexpr,
):  # fmt: skip
    """The token of one line."""
    line = tl.program_id(0).to(tl.int64)
    slot = tl.load(rows.slots + line)
    top, token = highest(peaks.top, peaks.token, line, chunks, CHUNKS)
    if top == NEVER:
        token = last_resort(line, chunks, edits, peaks, CHUNKS)
    elif not GREEDY:
        if tl.load(table.temperature + slot) > 0:
            token = settle_sampled(rows, line, slot, stride, vocab, top, table, edits, search, race, chunks, CHUNKS,
                                   BARS, BLOCK, WAYS, CAPACITY, RACING)  # fmt: skip
    tl.store(out + line, token.to(tl.int64))


@triton.jit
def settle_sampled(
    rows, line, slot, stride, vocab, top, table, edits, search, race, chunks, CHUNKS: tl.constexpr,
    BARS: tl.constexpr, BLOCK: tl.constexpr, WAYS: tl.constexpr, CAPACITY: tl.constexpr, RACING: tl.constexpr,
):  # fmt: skip
    """The winner among the tokens that were surely kept and those of the bracket that the floor leaves in."""
    best, token = tl.full((), NEVER, tl.float32), tl.full((), NO_TOKEN, tl.int32)
    if RACING:
        best, token = highest(race.score, race.token, line, chunks, CHUNKS)
    low, high = tl.load(search.bracket + line * 4 + 2), tl.load(search.bracket + line * 4 + 3)
    floor = low
    if low < high:
        listed = tl.load(search.listed + line)
        if listed <= CAPACITY:
            below = sum_of(search.below, line, chunks, CHUNKS)
            floor, best, token = among(
                listed, low, high, below, best, token, rows, line, slot, stride, vocab, top, table, edits, search,
                chunks, CHUNKS, BARS, BLOCK, WAYS, CAPACITY, True, RACING,
            )  # fmt: skip
        else:
            floor, best, token = among(
                vocab, low, high, tl.zeros((), tl.int64), best, token, rows, line, slot, stride, vocab, top, table,
                edits, search, chunks, CHUNKS, BARS, BLOCK, WAYS, CAPACITY, False, RACING,
            )  # fmt: skip
    tl.store(search.floor + line, floor)
    return tl.where(token == NO_TOKEN, 0, token)


@triton.jit
def among(
    count, low, high, below, best, token, rows, line, slot, stride, vocab, top, table, edits, search, chunks,
    CHUNKS: tl.constexpr, BARS: tl.constexpr, BLOCK: tl.constexpr, WAYS: tl.constexpr, CAPACITY: tl.constexpr,
    LISTED: tl.constexpr, RACING: tl.constexpr,
):  # fmt: skip
    """The exact floor within a bracket, and the best of the tokens there that reach it."""
    temperature, k, p, allowed = filters(slot, vocab, table)
    source = (rows, line, slot, stride, vocab, top, temperature, table, edits, search)
    floor = allowed
    total = sum_of(search.total, line, chunks, CHUNKS)
    if k > 0:
        floor = cut(count, low, high, below, k, high, source, BLOCK, BARS, CAPACITY, WAYS, LISTED, True)
        floor = tl.minimum(floor, allowed)
        if p < 1:
            total = tl.zeros((), tl.int64)
            for start in range(0, count, BLOCK):
                distance, _ = part(start, count, *source, BLOCK, BARS, CAPACITY, LISTED)
                total += tl.sum(tl.where(distance <= floor, masses(distance), 0))
            low, high, below = low * 0 - 1, floor, below * 0
    if p < 1:
        need = needed(total, p)
        end = tl.minimum(high, floor)
        floor = cut(count, low, end, below, need, floor, source, BLOCK, BARS, CAPACITY, WAYS, LISTED, False)
    if RACING:
        position, seed = tl.load(rows.positions + line), tl.load(table.seed + slot)
        for start in range(0, count, BLOCK):
            distance, tokens = part(start, count, *source, BLOCK, BARS, CAPACITY, LISTED)
            kept = distance <= floor
            score = tl.where(kept, z_of(distance) + noise_of_tokens(tokens, position, seed, TARGET), NEVER)
            lead = tl.max(score)
            winner = tl.min(tl.where(kept & (score == lead), tokens, NO_TOKEN))
            token = tl.where(lead > best, winner, tl.where(lead == best, tl.minimum(winner, token), token))
            best = tl.maximum(best, lead)
    return floor, best, token


@triton.jit
def cut(
    count, low, high, below, need, allowed, source, BLOCK: tl.constexpr, BARS: tl.constexpr,
    CAPACITY: tl.constexpr, WAYS: tl.constexpr, LISTED: tl.constexpr, COUNTING: tl.constexpr,
):  # fmt: skip
    """The smallest distance in (low, high] at which the sum reaches `need`, by sums of integers."""
    first, last = high, low
    for start in range(0, count, BLOCK):  # few distinct values are soon told apart
        distance, _ = part(start, count, *source, BLOCK, BARS, CAPACITY, LISTED)
        open_ = (distance > low) & (distance <= high)
        first = tl.minimum(first, tl.min(tl.where(open_, distance, high)))
        last = tl.maximum(last, tl.max(tl.where(open_, distance, low)))
    low, high = tl.maximum(low, first - 1), tl.minimum(high, last)
    way = tl.arange(0, WAYS)
    while high - low > 1:
        step = (high - low + WAYS - 1) // WAYS
        candidates = tl.minimum(low + step * (way + 1), high)
        reached = tl.zeros((WAYS,), tl.int64) + below
        for start in range(0, count, BLOCK):
            distance, _ = part(start, count, *source, BLOCK, BARS, CAPACITY, LISTED)
            weight = (distance < NO_TOKEN).to(tl.int64)
            if not COUNTING:
                weight = tl.where(distance <= allowed, masses(distance), 0)
            reached += tl.sum(tl.where(distance[None, :] <= candidates[:, None], weight[None, :], 0), axis=1)
        short = reached < need
        low, high = tl.max(tl.where(short, candidates, low)), tl.min(tl.where(short, high, candidates))
    return high
