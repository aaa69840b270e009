"""min-p, top-k and top-p in Triton without a sort: the floor under z = (score - highest) / temperature, exactly.

A token's distance is the bits of -z, which have the order of -z. The floor is the smallest distance at which a running
sum (of tokens for top-k, of integer masses for top-p) reaches what is needed. Three reads of the line narrow it down
with sums up to eight candidate distances at once; these sums are rough, with a margin for their roughness, so they
decide only where to look. The second and third read leave out every chunk that lies past the
bracket: on peaked logits that is most of the line. The few tokens left in the bracket are listed, and sums of integers
over the list find the floor: no result depends on the order of anything.
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
TINY, HUGE = tl.constexpr(0x15F79688), tl.constexpr(0x6A045951)  # the bits of 1e-25 and 4e25
OCTAVE = tl.constexpr(1 << 23)  # distances a factor of two apart
STEEP = tl.constexpr(8.0)
MARGIN = tl.constexpr(1e-4)  # well above the rounding of a float32 sum in any order
READS, CANDIDATES = 3, 8  # three reads of 8 narrow a bracket further than two of 16, and sum less


class Search(NamedTuple):
    """What each read of a line leaves for the next."""

    sums: Any  # float32 [L, C, CANDIDATES]: of the last read, down to each candidate
    total: Any  # int64 [L, C]: mass above min-p's floor
    below: Any  # int64 [L, C]: sum of what is surely kept
    bracket: Any  # int32 [L, 2]: low and high; the floor lies in (low, high]
    listed: Any  # int32 [L]: how many tokens lie in the bracket
    distance: Any  # int32 [L, CAPACITY]: theirs
    token: Any  # int32 [L, CAPACITY]
    lead: Any  # float32 [L]: what the best of the surely kept reaches at least, with its noise
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
def distance_of(score, top, temperature):
    """Bits of -z of one token."""
    return tl.abs(tl.div_rn(score - top, temperature)).to(tl.int32, bitcast=True)


@triton.jit
def distances(scores, top, temperature):
    """Bits of -z of many tokens."""
    below = scores - top
    size = tl.abs(below).to(tl.int32, bitcast=True)
    nearest = tl.min((size - 1).to(tl.uint32, bitcast=True))  # but for the top itself
    if (nearest > TINY) & (temperature > 1e-5) & (temperature < 1e5):
        quotient = divided(below, size, temperature)
    else:  # a residue might vanish
        quotient = tl.div_rn(below, temperature)
    return tl.abs(quotient).to(tl.int32, bitcast=True)


@triton.jit
def divided(numbers, size, by):
    """Numbers / by, correctly rounded, in half the instructions of a division: the remainder is added in twice.

    Past HUGE it is not exact: such a token has no mass and wins nothing, and only the order of distances matters.
    """
    reciprocal = tl.div_rn(1.0, by)
    quotient = numbers * reciprocal
    finer = tl.fma(tl.fma(quotient, -by, numbers), reciprocal, quotient)
    finest = tl.fma(tl.fma(finer, -by, numbers), reciprocal, finer)
    return tl.where(size < HUGE, finest, quotient)


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
def next_ramp(number, low, high, COUNT: tl.constexpr):
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
def tighten(
    slots,
    vocab,
    table,
    peaks,
    search,
    chunks,
    COUNT: tl.constexpr,
    CHUNKS: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
):
    """One line's bracket after a read: past candidates that surely fall short, up to those that surely reach.

    Without top-k and top-p it is empty, at min-p's floor. A separate kernel, because every chunk of the line needs the
    result.
    """
    line = tl.program_id(0).to(tl.int64)
    temperature, k, p, allowed = filters(tl.load(slots + line), vocab, table)
    low, high = allowed, allowed
    if (temperature > 0) & ((k > 0) | (p < 1)):
        number, chunk = tl.arange(0, COUNT), tl.arange(0, CHUNKS)
        if FIRST:  # top-k's floor may be anywhere, top-p's only where there is mass
            low, high = tl.full((), -1, tl.int32), tl.where(k > 0, INFINITE, tl.minimum(allowed, WEIGHTLESS))
            place, _slope, _height, flat = first_ramp(number, k, temperature, COUNT)
        else:
            low, high = tl.load(search.bracket + line * 2), tl.load(search.bracket + line * 2 + 1)
            place, _slope, _height, flat = next_ramp(number, low, high, COUNT)
        sums = search.sums + (line * chunks + chunk[:, None]) * COUNT + number[None, :]
        total = tl.sum(tl.load(sums, chunk[:, None] < chunks, 0.0), axis=0)
        need = needed(sum_of(search.total, line, chunks, CHUNKS), p)
        wanted = tl.where(k > 0, k.to(tl.float32), (need.to(tl.float64) / UNIT).to(tl.float32))
        before = tl.where(place > flat, (place - flat).to(tl.int32, bitcast=True), -1)
        after = (place + flat).to(tl.int32, bitcast=True)
        low = tl.max(tl.where(total * (1 + MARGIN) < wanted, tl.maximum(before, low), low))
        high = tl.min(tl.where(total * (1 - MARGIN) >= wanted, tl.minimum(after, high), high))
        if LAST:
            low = tl.where((k > 0) & (p < 1), -1, low)  # top-p may cut anywhere above top-k's floor
    tl.store(search.bracket + line * 2, low)
    tl.store(search.bracket + line * 2 + 1, high)


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
    COUNT: tl.constexpr,
    FIRST: tl.constexpr,
):
    """Sums of one chunk of one line down to each candidate distance; the FIRST read also finds its whole mass."""
    line, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(rows.slots + line)
    temperature, k, p, allowed = filters(slot, vocab, table)
    if (temperature <= 0) | ((k == 0) & (p >= 1)):
        return
    top, _ = highest(peaks.top, peaks.token, line, chunks, CHUNKS)
    if top == NEVER:
        return
    place = line * chunks + chunk
    out = search.sums + place * COUNT
    nearest = distance_of(tl.load(peaks.top + place), top, temperature)
    if FIRST:
        low, high = tl.full((), -1, tl.int32), tl.where(k > 0, INFINITE, tl.minimum(allowed, WEIGHTLESS))
    else:
        low, high = tl.load(search.bracket + line * 2), tl.load(search.bracket + line * 2 + 1)
    if (nearest > high) | (nearest == INFINITE):  # all of this chunk lies past the bracket, has no mass, or is barred
        tl.store(out + tl.arange(0, COUNT), tl.zeros([COUNT], tl.float32))
        if FIRST:
            tl.store(search.total + place, tl.zeros((), tl.int64))
        return
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = tokens < vocab
    x = scores(rows, tokens, inside, line, slot, stride, vocab, table, edits, BARS)
    if FIRST:
        distance = distances(x, top, temperature)
        share = libdevice.exp(z_of(distance))
        weighed = inside & (distance <= allowed)
        tl.store(search.total + place, tl.sum(tl.where(weighed, (share * UNIT).to(tl.int64), 0)))
        weight = weights(share, distance, inside, k, allowed)
        for i in range(0, COUNT, 2):
            _at, slope, height, _flat = first_ramp(i, k, temperature, COUNT)
            _next, slope_too, higher, _wide = first_ramp(i + 1, k, temperature, COUNT)
            ramped(distance, weight, slope, height, slope_too, higher, out + i)
    else:
        if allowed < INFINITE:  # a token at min-p's floor must fall on the right side of it
            distance = distances(x, top, temperature)
        else:
            distance = ((top - x) * tl.div_rn(1.0, temperature)).to(tl.int32, bitcast=True)
        weight = weights(tl.exp(z_of(distance)), distance, inside, k, allowed)
        for i in range(0, COUNT, 2):
            _at, slope, height, _flat = next_ramp(i, low, high, COUNT)
            _next, _same, higher, _wide = next_ramp(i + 1, low, high, COUNT)
            ramped(distance, weight, slope, height, slope, higher, out + i)


@triton.jit
def weights(share, distance, inside, k, allowed):
    """What a token adds to a rough sum: 1 for top-k, else its share of the mass above min-p's floor."""
    return tl.where(inside, tl.where(k > 0, 1.0, tl.where(distance <= allowed, share, 0.0)), 0.0)


@triton.jit
def ramped(distance, weight, slope, height, slope_too, height_too, out):
    """Weights under two ramps, roughly summed; two at a time share one reduction across the warps."""
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
