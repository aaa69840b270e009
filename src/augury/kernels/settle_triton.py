"""The end of the Triton draw, one program per line: the exact floor within the bracket, the race of those listed."""

from __future__ import annotations

import triton
import triton.language as tl

from augury.kernels.edits_triton import NEVER
from augury.kernels.floor_triton import filters, masses, needed, part, sum_of, z_of
from augury.kernels.peak_triton import NO_TOKEN, highest, last_resort
from augury.kernels.philox_triton import noise_of_tokens
from augury.verify import noise

TARGET = tl.constexpr(noise.TARGET)


@triton.jit
def settle(
    rows,
    stride,
    vocab,
    table,
    edits,
    peaks,
    search,
    out,
    chunks,
    CHUNKS: tl.constexpr,
    BARS: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
    CAPACITY: tl.constexpr,
    GREEDY: tl.constexpr,
    RACING: tl.constexpr,
):
    """Write one line's token: the peak if greedy, the race's winner if sampled, the last resort if all are barred."""
    line = tl.program_id(0).to(tl.int64)
    slot = tl.load(rows.slots + line)
    top, token = highest(peaks.top, peaks.token, line, chunks, CHUNKS)
    if top == NEVER:
        token = last_resort(line, chunks, edits, peaks, CHUNKS)
    elif not GREEDY:
        if tl.load(table.temperature + slot) > 0:
            token = settle_sampled(
                rows,
                line,
                slot,
                stride,
                vocab,
                top,
                table,
                edits,
                search,
                chunks,
                CHUNKS,
                BARS,
                BLOCK,
                WAYS,
                CAPACITY,
                RACING,
            )
    tl.store(out + line, token.to(tl.int64))


@triton.jit
def settle_sampled(
    rows,
    line,
    slot,
    stride,
    vocab,
    top,
    table,
    edits,
    search,
    chunks,
    CHUNKS: tl.constexpr,
    BARS: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
    CAPACITY: tl.constexpr,
    RACING: tl.constexpr,
):
    """The winner among the listed tokens that the floor leaves in; without racing only the floor is found."""
    token = tl.full((), NO_TOKEN, tl.int32)
    low, high = tl.load(search.bracket + line * 2), tl.load(search.bracket + line * 2 + 1)
    floor = low
    if (low < high) | RACING:
        listed = tl.load(search.listed + line)
        if listed <= CAPACITY:
            below = sum_of(search.below, line, chunks, CHUNKS)
            floor, token = among(
                listed,
                low,
                high,
                below,
                rows,
                line,
                slot,
                stride,
                vocab,
                top,
                table,
                edits,
                search,
                chunks,
                CHUNKS,
                BARS,
                BLOCK,
                WAYS,
                CAPACITY,
                True,
                RACING,
            )
        else:
            floor, token = among(
                vocab,
                low,
                high,
                tl.zeros((), tl.int64),
                rows,
                line,
                slot,
                stride,
                vocab,
                top,
                table,
                edits,
                search,
                chunks,
                CHUNKS,
                BARS,
                BLOCK,
                WAYS,
                CAPACITY,
                False,
                RACING,
            )
    tl.store(search.floor + line, floor)
    return tl.where(token == NO_TOKEN, 0, token)


@triton.jit
def among(
    count,
    low,
    high,
    below,
    rows,
    line,
    slot,
    stride,
    vocab,
    top,
    table,
    edits,
    search,
    chunks,
    CHUNKS: tl.constexpr,
    BARS: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
    CAPACITY: tl.constexpr,
    LISTED: tl.constexpr,
    RACING: tl.constexpr,
):
    """The exact floor within a bracket, and the best of those tokens that reach it."""
    best, token = tl.full((), NEVER, tl.float32), tl.full((), NO_TOKEN, tl.int32)
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
                distance, _tokens = part(start, count, *source, BLOCK, BARS, CAPACITY, LISTED)
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
    return floor, token


@triton.jit
def cut(
    count,
    low,
    high,
    below,
    need,
    allowed,
    source,
    BLOCK: tl.constexpr,
    BARS: tl.constexpr,
    CAPACITY: tl.constexpr,
    WAYS: tl.constexpr,
    LISTED: tl.constexpr,
    COUNTING: tl.constexpr,
):
    """The smallest distance in (low, high] at which the sum reaches `need`, by sums of integers."""
    first, last = high, low
    counted = low  # what a list holds up to here is in `below` already
    if not LISTED:
        counted = low * 0 - 1
    for start in range(0, count, BLOCK):  # few distinct values are soon told apart
        distance, _tokens = part(start, count, *source, BLOCK, BARS, CAPACITY, LISTED)
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
            distance, _tokens = part(start, count, *source, BLOCK, BARS, CAPACITY, LISTED)
            weight = ((distance < NO_TOKEN) & (distance > counted)).to(tl.int64)
            if not COUNTING:
                weight = tl.where((distance <= allowed) & (distance > counted), masses(distance), 0)
            reached += tl.sum(tl.where(distance[None, :] <= candidates[:, None], weight[None, :], 0), axis=1)
        short = reached < need
        low, high = tl.max(tl.where(short, candidates, low)), tl.min(tl.where(short, high, candidates))
    return high
