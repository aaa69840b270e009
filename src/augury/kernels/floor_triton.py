"""min-p, top-k and top-p in Triton without a sort: the floor under z = (score - highest) / temperature, exactly.

A token's distance is the bits of -z, which have the order of -z. The floor is the smallest distance at which a running
sum (of tokens for top-k, of integer masses for top-p) reaches what is needed. Two reads of the line narrow it down with
sums up to many candidate distances at once; these sums are rough, with a margin for their roughness, so they decide
where to look and never what is found. The few tokens left in the bracket are listed, and sums of integers over the list
find the floor: no result depends on the order of anything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from augury.kernels.edits_triton import NEVER, scores
from augury.kernels.peak_triton import NO_TOKEN, highest
from augury.kernels.verify import MASS_UNIT

UNIT = tl.constexpr(MASS_UNIT)
INFINITE = tl.constexpr(0x7F800000)  # the distance of a barred token
WEIGHTLESS = tl.constexpr(0x41E00000)  # the distance of z = -28, which has no mass: exp(-28) < 2**-40
REACH = tl.constexpr(28.0)
OCTAVE = tl.constexpr(1 << 23)  # distances a factor of two apart
STEEP = tl.constexpr(8.0)
MARGIN = tl.constexpr(1e-4)  # well above the rounding of a float32 sum in any order
FIRST, SECOND = 16, 16  # candidates of the two reads; more take longer to sum, fewer leave longer lists


class Search(NamedTuple):
    """What the reads of a line tell each other."""

    first: Any  # float32 [L, C, FIRST]: sums down to each candidate of the first read
    second: Any  # float32 [L, C, SECOND]
    total: Any  # int64 [L, C]: mass above min-p's floor
    below: Any  # int64 [L, C]: sum of what is surely kept
    bracket: Any  # int32 [L, 4]: the floor lies in (0, 1] after the first read, (2, 3] after the second
    listed: Any  # int32 [L]: how many tokens lie in the bracket
    distance: Any  # int32 [L, CAPACITY]: theirs
    token: Any  # int32 [L, CAPACITY]
    floor: Any  # int32 [L]: the distance found


@triton.jit
def filters(slot, vocab, table):
    """Temperature, top-k (0: off), top-p (1: off) and the distance that min-p allows, of one slot."""
    k = tl.load(table.top_k + slot)
    k = tl.where((k > 0) & (k < vocab), k, 0)
    lowest = libdevice.log(tl.load(table.min_p + slot))
    allowed = tl.where(lowest > 0, -1, tl.abs(lowest).to(tl.int32, bitcast=True))
    return tl.load(table.temperature + slot), k, tl.load(table.top_p + slot), allowed


@triton.jit
def distances(scores, top, temperature):
    """Bits of -z."""
    return tl.abs(tl.div_rn(scores - top, temperature)).to(tl.int32, bitcast=True)


@triton.jit
def z_of(distance):
    """The z of a distance."""
    return -distance.to(tl.float32, bitcast=True)


@triton.jit
def masses(distance):
    """exp(z) in units of 2**-40, whole: the product is a shift, so nothing is rounded before the cut."""
    return (libdevice.exp(z_of(distance)) * UNIT).to(tl.int64)


@triton.jit
def needed(total, p):
    """The mass that top-p keeps of a total."""
    share = tl.ceil(p.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
    return tl.minimum(tl.maximum(share, 1), total)


@triton.jit
def first_ramp(number, k, temperature, COUNT: tl.constexpr):
    """Candidates over eight octaves, down from where top-p can reach, or from as far in logits for top-k.

    A ramp falls from 1 to 0 about its candidate, in two instructions where a comparison takes three: its place, its
    slope, its height at 0, and how far from its place it is surely flat.
    """
    far = tl.where(k > 0, tl.div_rn(REACH, temperature), REACH)
    far = tl.minimum(far, 1e30).to(tl.int32, bitcast=True)
    place = (far - (COUNT - 1 - number) * (8 * OCTAVE // COUNT)).to(tl.float32, bitcast=True)
    return place, tl.div_rn(STEEP, place), place * 0 + (STEEP + 0.5), place * 0.07


@triton.jit
def second_ramp(number, low, high, COUNT: tl.constexpr):
    """Candidates equally far apart in z within a bracket."""
    near = tl.maximum(low, 0).to(tl.float32, bitcast=True)
    far = tl.where(high < INFINITE, high.to(tl.float32, bitcast=True), tl.minimum(near * 256, 1e30))
    # So far apart that rounding leaves a ramp flat where it must be.
    space = tl.maximum(tl.maximum((far - near) * (1.0 / (COUNT + 1)), far * 1e-5), 1e-30)
    place = near + space * (tl.full((), 1, tl.int32) + number).to(tl.float32)
    slope = tl.div_rn(STEEP, space)
    return place, slope, place * slope + 0.5, space * 0.125


@triton.jit
def sum_of(values, line, chunks, CHUNKS: tl.constexpr):
    """A line's [L, C] integers, summed."""
    chunk = tl.arange(0, CHUNKS)
    return tl.sum(tl.load(values + line * chunks + chunk, chunk < chunks, 0))


@triton.jit
def tightened(sums, place, flat, k, need, low, high, line, chunks, COUNT: tl.constexpr, CHUNKS: tl.constexpr):
    """The bracket (low, high] after a read: candidates that surely fall short, and that surely reach."""
    chunk, number = tl.arange(0, CHUNKS)[:, None], tl.arange(0, COUNT)[None, :]
    each = tl.load(sums + (line * chunks + chunk) * COUNT + number, chunk < chunks, 0.0)
    total = tl.sum(each, axis=0)
    wanted = tl.where(k > 0, k.to(tl.float32), (need.to(tl.float64) / UNIT).to(tl.float32))
    reaches = total * (1 - MARGIN) >= wanted
    short = total * (1 + MARGIN) < wanted
    before = tl.where(place > flat, (place - flat).to(tl.int32, bitcast=True), -1)
    after = (place + flat).to(tl.int32, bitcast=True)
    low = tl.max(tl.where(short, tl.maximum(before, low), low))
    return low, tl.min(tl.where(reaches, tl.minimum(after, high), high))


@triton.jit
def bracketed(search, line, slot, vocab, chunks, table, SECOND: tl.constexpr, CHUNKS: tl.constexpr):
    """The bracket after both reads; without top-k and top-p it is empty, at min-p's floor."""
    _temperature, k, p, allowed = filters(slot, vocab, table)
    low, high = allowed, allowed
    if (k > 0) | (p < 1):
        near, far = tl.load(search.bracket + line * 4), tl.load(search.bracket + line * 4 + 1)
        need = needed(sum_of(search.total, line, chunks, CHUNKS), p)
        place, _slope, _height, flat = second_ramp(tl.arange(0, SECOND), near, far, SECOND)
        low, high = tightened(search.second, place, flat, k, need, near, far, line, chunks, SECOND, CHUNKS)
        if (k > 0) & (p < 1):
            low = low * 0 - 1  # top-p may cut anywhere above top-k's floor
    return low, high


@triton.jit
def narrow(
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
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    AGAIN: tl.constexpr,
):
    """Sums of one chunk of one line down to each candidate distance; AGAIN is the second read."""
    line, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(rows.slots + line)
    temperature, k, p, allowed = filters(slot, vocab, table)
    if (temperature <= 0) | ((k == 0) & (p >= 1)):
        return
    top, _ = highest(peaks.top, peaks.token, line, chunks, CHUNKS)
    if top == NEVER:
        return
    place = line * chunks + chunk
    nearest = distances(tl.load(peaks.top + place), top, temperature)
    if AGAIN:
        low, high = after_first(search, k, p, allowed, temperature, line, chunks, FIRST, CHUNKS)
        tl.store(search.bracket + line * 4, low, chunk == 0)
        tl.store(search.bracket + line * 4 + 1, high, chunk == 0)
        if nearest > high:  # all of this chunk lies past the bracket
            tl.store(search.second + place * SECOND + tl.arange(0, SECOND), tl.zeros([SECOND], tl.float32))
            return
    elif (k == 0) & (nearest > tl.minimum(allowed, WEIGHTLESS)):  # none of it has any mass
        tl.store(search.total + place, tl.zeros((), tl.int64))
        tl.store(search.first + place * FIRST + tl.arange(0, FIRST), tl.zeros([FIRST], tl.float32))
        return
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = tokens < vocab
    x = scores(rows, tokens, inside, line, slot, stride, vocab, table, edits, BARS)
    if AGAIN:
        if allowed < INFINITE:  # a token at min-p's floor must fall on the right side of it
            distance = distances(x, top, temperature)
        else:
            distance = ((top - x) * tl.div_rn(1.0, temperature)).to(tl.int32, bitcast=True)
        weight = weights(tl.exp(z_of(distance)), distance, inside, k, allowed)
        for i in range(0, SECOND, 2):
            _at, slope, height, _flat = second_ramp(i, low, high, SECOND)
            _next, _same, higher, _wide = second_ramp(i + 1, low, high, SECOND)
            ramped(distance, weight, slope, height, slope, higher, search.second + place * SECOND + i)
    else:
        distance = distances(x, top, temperature)
        share = libdevice.exp(z_of(distance))
        weighed = inside & (distance <= allowed)
        tl.store(search.total + place, tl.sum(tl.where(weighed, (share * UNIT).to(tl.int64), 0)))
        weight = weights(share, distance, inside, k, allowed)
        for i in range(0, FIRST, 2):
            _at, slope, height, _flat = first_ramp(i, k, temperature, FIRST)
            _next, slope_too, higher, _wide = first_ramp(i + 1, k, temperature, FIRST)
            ramped(distance, weight, slope, height, slope_too, higher, search.first + place * FIRST + i)


@triton.jit
def weights(share, distance, inside, k, allowed):
    """What a token adds to a rough sum: 1 for top-k, else its share of the mass above min-p's floor."""
    return tl.where(inside, tl.where(k > 0, 1.0, tl.where(distance <= allowed, share, 0.0)), 0.0)


@triton.jit
def after_first(search, k, p, allowed, temperature, line, chunks, FIRST: tl.constexpr, CHUNKS: tl.constexpr):
    """The bracket after the first read; before it, top-k's floor may be anywhere, top-p's only where there is mass."""
    low, high = tl.full((), -1, tl.int32), tl.where(k > 0, INFINITE, tl.minimum(allowed, WEIGHTLESS))
    need = needed(sum_of(search.total, line, chunks, CHUNKS), p)
    place, _slope, _height, flat = first_ramp(tl.arange(0, FIRST), k, temperature, FIRST)
    return tightened(search.first, place, flat, k, need, low, high, line, chunks, FIRST, CHUNKS)


@triton.jit
def ramped(distance, weight, slope, height, slope_too, height_too, out):
    """Weights under two ramps, roughly summed; two at a time share the way through the warps."""
    far = distance.to(tl.float32, bitcast=True)
    one = libdevice.saturatef(height - far * slope) * weight
    two = libdevice.saturatef(height_too - far * slope_too) * weight
    tl.store(out + tl.arange(0, 2), tl.sum(tl.join(one, two), axis=0))


@triton.jit
def part(
    start,
    end,
    rows,
    line,
    slot,
    stride,
    vocab,
    top,
    temperature,
    table,
    edits,
    search,
    BLOCK: tl.constexpr,
    BARS: tl.constexpr,
    CAPACITY: tl.constexpr,
    LISTED: tl.constexpr,
):
    """Distances and tokens of a block of the list, or of the whole line where the list was too short."""
    at = start + tl.arange(0, BLOCK)
    inside = at < end
    if LISTED:
        distance = tl.load(search.distance + line * CAPACITY + at, inside, NO_TOKEN)
        tokens = tl.load(search.token + line * CAPACITY + at, inside, 0)
    else:
        tokens = at
        x = scores(rows, tokens, inside, line, slot, stride, vocab, table, edits, BARS)
        distance = tl.where(inside, distances(x, top, temperature), NO_TOKEN)
    return distance, tokens
