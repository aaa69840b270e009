"""The highest score of every line in Triton: by itself the greedy token, and the first of the draw's reads.

Each program reads one chunk of one line; the next kernel joins the chunks. A maximum does not depend on order, so the
size of a chunk affects only the speed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.edits_triton import NEVER, DrawRows, EditTensors, grammatical, ordered, padded, raw_scores, scores

CHUNK = 2048  # tokens per program: fine enough for a few lines to fill the device, and for most of a line to be skipped
NO_TOKEN = tl.constexpr(2**31 - 1)


class Peaks(NamedTuple):
    """What the chunks of each line found, [L, C]; the last four only where a last resort may depend on the line."""

    top: Any  # float32: the highest score
    token: Any  # int32: its lowest token
    allowed: Any  # int32: the lowest token that bias and grammar allow
    grammatical: Any  # int32: the lowest token that the grammar allows
    raw: Any  # float32: the highest logit before the edits
    raw_token: Any  # int32


def chunk_of(vocab: int) -> int:
    """How many tokens a program reads."""
    return min(CHUNK, max(padded(vocab), 16))


def blank_peaks(lines: int, chunks: int, device: torch.device, resort: bool) -> Peaks:
    """Room for the peaks; `resort` also for what a last resort needs."""

    def room(dtype: torch.dtype) -> Tensor:
        return torch.empty(lines, chunks, dtype=dtype, device=device)

    f32, i32 = torch.float32, torch.int32
    extra = (room(i32), room(i32), room(f32), room(i32)) if resort else (None,) * 4
    return Peaks(room(f32), room(i32), *extra)


def argmax(logits: Tensor, targets: Tensor | None = None) -> Tensor:
    """The lowest token of the highest logit of every [L, V] line, int64 [L], through an int64 [V] table if given."""
    lines, vocab = logits.shape
    chunk = chunk_of(vocab)
    chunks = triton.cdiv(vocab, chunk)
    peaks = blank_peaks(lines, chunks, logits.device, resort=False)
    out = torch.empty(lines, dtype=torch.int64, device=logits.device)
    rows, none = DrawRows(logits, None, None), EditTensors(*[None] * len(EditTensors._fields))
    find_peaks[(lines, chunks)](
        rows, logits.stride(0), vocab, None, none, peaks, None, CHUNK=chunk, BARS=1, num_warps=warps_of(chunk, 16)
    )
    join_peaks[(lines,)](peaks, targets, out, chunks, CHUNKS=padded(chunks), num_warps=1)
    return out


def warps_of(chunk: int, tokens: int) -> int:
    """How many warps read a chunk if each thread reads `tokens` tokens."""
    return min(max(chunk // (32 * tokens), 1), 16)


@triton.jit
def find_peaks(rows, stride, vocab, table, edits, peaks, search, CHUNK: tl.constexpr, BARS: tl.constexpr):
    """The highest score of one chunk of one line."""
    line, chunk, chunks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = tokens < vocab
    place = line * chunks + chunk
    if edits.bars is None:
        x = ordered(raw_scores(rows, tokens, inside, line, stride))
    else:
        slot = tl.load(rows.slots + line)
        x = scores(rows, tokens, inside, line, slot, stride, vocab, table, edits, BARS)
        if peaks.raw is not None:
            find_resort(rows, tokens, inside, line, slot, place, stride, vocab, table, edits, peaks)
    top = tl.max(x)
    tl.store(peaks.top + place, top)
    tl.store(peaks.token + place, tl.min(tl.where(inside & (x == top), tokens, NO_TOKEN)))
    if search is not None:
        tl.store(search.listed + line, 0, chunk == 0)
        tl.store(search.lead + line, NEVER, chunk == 0)


@triton.jit
def find_resort(rows, tokens, inside, line, slot, place, stride, vocab, table, edits, peaks):
    """Find what one chunk contributes to the last resort: the token to emit if every token is banned."""
    concerned = False
    if table.bias is not None:
        concerned = tl.load(table.biased + slot) != 0
    if edits.mask_bits is not None:
        concerned = concerned | (tl.load(edits.mask_rows + line) >= 0)
    tl.store(peaks.allowed + place, tl.min(tokens))
    if concerned:
        allowed = inside
        if table.bias is not None:
            biased = tl.load(table.biased + slot)
            allowed = inside & (tl.load(table.bias + slot * vocab + tokens, inside & biased, 0.0) > NEVER)
        spelled = inside
        if edits.mask_bits is not None:
            spelled = inside & grammatical(tokens, inside, line, edits)
        tl.store(peaks.allowed + place, tl.min(tl.where(allowed & spelled, tokens, NO_TOKEN)))
        tl.store(peaks.grammatical + place, tl.min(tl.where(spelled, tokens, NO_TOKEN)))
        raw = ordered(raw_scores(rows, tokens, inside, line, stride))
        top = tl.max(raw)
        tl.store(peaks.raw + place, top)
        tl.store(peaks.raw_token + place, tl.min(tl.where(inside & (raw == top), tokens, NO_TOKEN)))


@triton.jit
def highest(values, tokens, line, chunks, CHUNKS: tl.constexpr):
    """The highest of a line's [L, C] values, and the lowest token that reaches it."""
    chunk = tl.arange(0, CHUNKS)
    value = tl.load(values + line * chunks + chunk, chunk < chunks, NEVER)
    token = tl.load(tokens + line * chunks + chunk, chunk < chunks, NO_TOKEN)
    top = tl.max(value)
    return top, tl.min(tl.where(value == top, token, NO_TOKEN))


@triton.jit
def last_resort(line, chunks, edits, peaks, CHUNKS: tl.constexpr):
    """What to emit when everything is barred: the lowest token that bias and grammar allow, else the highest logit.

    A grammar outranks the bias: where they allow no token together, the lowest that the grammar allows.
    """
    token = tl.zeros((), tl.int32)
    if peaks.raw is not None:
        chunk = tl.arange(0, CHUNKS)
        place, there = line * chunks + chunk, chunk < chunks
        token = tl.min(tl.load(peaks.allowed + place, there, NO_TOKEN))
        if edits.mask_bits is not None:
            own = tl.min(tl.load(peaks.grammatical + place, there, NO_TOKEN))
            token = tl.where((token == NO_TOKEN) & (tl.load(edits.mask_rows + line) >= 0), own, token)
        _, raw = highest(peaks.raw, peaks.raw_token, line, chunks, CHUNKS)
        token = tl.where(token == NO_TOKEN, raw, token)
    return token


@triton.jit
def join_peaks(peaks, targets, out, chunks, CHUNKS: tl.constexpr):
    """The token of one line, mapped through `targets` if given."""
    line = tl.program_id(0).to(tl.int64)
    _, token = highest(peaks.top, peaks.token, line, chunks, CHUNKS)
    token = token.to(tl.int64)
    if targets is not None:
        token = tl.load(targets + token)
    tl.store(out + line, token)
