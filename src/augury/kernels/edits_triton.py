"""Bias, penalties, banned tokens and grammars in Triton: what `edited` of kernels/verify.py does, token by token.

One small kernel lists, per line, the tokens of its path and the banned tokens; every later kernel applies them
to the logits as it reads them, so that no edited line is ever written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import libdevice

from augury.kernels.verify import BEFORE_START, LARGEST, UNUSED
from augury.methods.spec import MAX_NODES
from augury.verify.sampling import Draws, SlotSampling

NEVER = tl.constexpr(float("-inf"))
MOST = tl.constexpr(LARGEST)
NOTHING, NO_HISTORY = tl.constexpr(UNUSED), tl.constexpr(BEFORE_START)
PATH = tl.constexpr(MAX_NODES + 1)


class Table(NamedTuple):
    """Columns of SlotSampling that kernels read."""

    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    repetition: Any
    presence: Any
    frequency: Any
    seed: Any
    penalized: Any
    biased: Any
    counts: Any
    in_prompt: Any
    bias: Any


class EditTensors(NamedTuple):
    """What changes the logits of each line; all None where the host knows that nothing does."""

    path: Any  # int32 [L, PATH]: drafted tokens above the line, its own included; for penalized slots only
    path_count: Any  # int32 [L]
    bars: Any  # int32 [L, B]: banned tokens
    bar_count: Any  # int32 [L]
    mask_bits: Any  # int32 [M, ceil(V / 32)]
    mask_rows: Any  # int64 [L]
    mask_stride: Any


class DrawRows(NamedTuple):
    """The lines to draw from."""

    logits: Any  # [L, V]
    slots: Any  # int64 [L]
    positions: Any  # int64 [L]


def table_of(sampling: SlotSampling) -> Table:
    """The columns of a SlotSampling."""
    return Table(*(getattr(sampling, name) for name in Table._fields))


def edits_of(draws: Draws, sampling: SlotSampling) -> EditTensors:
    """List the path and the bars of every line."""
    if draws.plain:
        return EditTensors(*[None] * len(EditTensors._fields))
    lines, device = len(draws.slots), draws.slots.device
    stops, (words, length) = sampling.stops.shape[1], sampling.bad_words.shape[1:]

    def blank(*shape: int) -> Tensor:
        return torch.empty(lines, *shape, dtype=torch.int32, device=device)

    masks = draws.masks
    grammar = (None, None, None) if masks is None else (masks.bits, masks.rows, masks.bits.stride(0))
    edits = EditTensors(blank(PATH.value), blank(), blank(max(stops + words, 1)), blank(), *grammar)
    list_edits[(lines,)](
        draws.slots,
        draws.positions,
        draws.tokens,
        draws.parents,
        draws.history,
        draws.history.stride(0),
        draws.history.shape[1],
        sampling.stops,
        sampling.bad_words,
        sampling.min_length,
        sampling.penalized,
        edits,
        STOPS=stops,
        WORDS=words,
        LENGTH=length,
        STOPS_PAD=padded(stops),
        WORDS_PAD=padded(words),
        num_warps=1,
    )
    return edits


def padded(size: int) -> int:
    """`size` rounded up to a power of two, at least 2."""
    return max(triton.next_power_of_2(size), 2)


@triton.jit
def list_edits(
    slots,
    positions,
    tokens,
    parents,
    history,
    history_stride,
    history_width,
    stops,
    bad_words,
    min_length,
    penalized,
    edits,
    STOPS: tl.constexpr,
    WORDS: tl.constexpr,
    LENGTH: tl.constexpr,
    STOPS_PAD: tl.constexpr,
    WORDS_PAD: tl.constexpr,
):
    """List one line's edits: climbs to its root once, for the penalties' path and for the ends of bad words."""
    line = tl.program_id(0).to(tl.int64)
    slot, position = tl.load(slots + line), tl.load(positions + line)
    number = tl.arange(0, WORDS_PAD)
    word = bad_words + (slot * WORDS + number) * LENGTH
    last = tl.load(word + (LENGTH - 1), number < WORDS, NOTHING)
    complete = last >= 0
    tail = tl.where(tl.max(complete.to(tl.int32)) > 0, LENGTH - 1, 0)
    limit = tl.where(tl.load(penalized + slot), PATH, 0)
    node, above, depth, climbed = line, tl.load(parents + line), 0, 0
    while (depth < tail) | ((above >= 0) & (depth < limit)):
        on_path = above >= 0
        at = position - 1 - depth
        known = history + slot * history_stride + tl.minimum(at, history_width - 1)
        token = tl.load(known, (at >= 0) & (above < 0), NO_HISTORY)
        token = tl.where(on_path, tl.load(tokens + node), token)
        tl.store(edits.path + line * PATH + depth, token.to(tl.int32), on_path & (depth < limit))
        climbed += (on_path & (depth < limit)).to(tl.int32)
        part = tl.load(word + (LENGTH - 2 - depth), (number < WORDS) & (depth < LENGTH - 1), NOTHING)
        complete = complete & ((part == NOTHING) | (part == token))
        node = tl.where(on_path, above, node)
        above = tl.load(parents + node, on_path, -1)
        depth += 1
    tl.store(edits.path_count + line, climbed)
    early = position < tl.load(min_length + slot)
    stop = tl.arange(0, STOPS_PAD)
    stop_token = tl.load(stops + slot * STOPS + stop, (stop < STOPS) & early, NOTHING)
    stopping = (stop_token >= 0).to(tl.int32)
    bars = edits.bars + line * (STOPS + WORDS)
    tl.store(bars + tl.cumsum(stopping) - 1, stop_token.to(tl.int32), stopping > 0)
    barring = complete.to(tl.int32)
    stopped = tl.sum(stopping)
    tl.store(bars + stopped + tl.cumsum(barring) - 1, last.to(tl.int32), barring > 0)
    tl.store(edits.bar_count + line, stopped + tl.sum(barring))


@triton.jit
def ordered(scores):
    """Scores made comparable: NaN becomes -inf, +inf the largest number."""
    return tl.minimum(tl.maximum(scores, NEVER), MOST)  # of NaN and a number these give the number


@triton.jit
def raw_scores(rows, tokens, inside, line, stride):
    """Logits of one line as float32, -inf outside the vocabulary."""
    return tl.load(rows.logits + line * stride + tokens, inside, NEVER).to(tl.float32)


@triton.jit
def scores(rows, tokens, inside, line, slot, stride, vocab, table, edits, BARS: tl.constexpr):
    """Scores of some tokens of one line after all edits, made comparable by `ordered`."""
    x = raw_scores(rows, tokens, inside, line, stride)
    if edits.bars is not None:
        if table.bias is not None:
            if tl.load(table.biased + slot):
                x = x + tl.load(table.bias + slot * vocab + tokens, inside, 0.0)
        if tl.load(table.penalized + slot):
            x = penalized_scores(x, tokens, inside, line, slot, vocab, table, edits)
        for i in range(tl.load(edits.bar_count + line)):
            x = tl.where(tokens == tl.load(edits.bars + line * BARS + i), NEVER, x)
        if edits.mask_bits is not None:
            x = tl.where(grammatical(tokens, inside, line, edits), x, NEVER)
    return ordered(x)


@triton.jit
def penalized_scores(x, tokens, inside, line, slot, vocab, table, edits):
    """Repetition over everything seen, frequency and presence over what was generated, the path included."""
    counts = tl.zeros_like(tokens)
    if table.counts is not None:
        counts = tl.load(table.counts + slot * vocab + tokens, inside, 0)
    for i in range(tl.load(edits.path_count + line)):
        counts += (tokens == tl.load(edits.path + line * PATH + i)).to(tl.int32)
    generated = counts > 0
    seen = generated
    if table.in_prompt is not None:
        seen = seen | (tl.load(table.in_prompt + slot * vocab + tokens, inside, 0) != 0)
    rate = tl.load(table.repetition + slot)
    after = tl.where(seen, tl.where(x > 0, tl.div_rn(x, rate), libdevice.mul_rn(x, rate)), x)
    after = after - libdevice.mul_rn(counts.to(tl.float32), tl.load(table.frequency + slot))  # never one fma
    return tl.where(generated, after - tl.load(table.presence + slot), after)


@triton.jit
def grammatical(tokens, inside, line, edits):
    """Tokens that the line's grammar allows; a free line allows all."""
    row = tl.load(edits.mask_rows + line)
    bits = tl.load(edits.mask_bits + row * edits.mask_stride + tokens // 32, inside & (row >= 0), -1)
    return ((bits >> (tokens % 32)) & 1) != 0
