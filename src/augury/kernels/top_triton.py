"""The likeliest tokens of every line and their log-probabilities in Triton, for draft trees.

Each program takes the best of one chunk and sums its weights; one program a line joins them. The size of a chunk is
fixed, because the sum of weights is a sum of floats: a line's figures do not depend on how many lines there are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import libdevice

from augury.kernels.edits_triton import NEVER, ordered, padded
from augury.kernels.peak_triton import NO_TOKEN

CHUNK = 2048
MOST = 16


class Best(NamedTuple):
    """What the chunks of each line found."""

    score: Any  # float32 [L, C, k], highest first
    token: Any  # int32 [L, C, k]
    weight: Any  # float32 [L, C]: sum of exp(logit - highest of the chunk)


def top_children(logits: Tensor, k: int, targets: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens of every line of [L, V] logits, int64 [L, k], and their log-probabilities, float32.

    Equals go to the lowest token; tokens are mapped through an int64 [V] table if given.
    """
    (lines, vocab), device = logits.shape, logits.device
    if not 0 < k <= min(MOST, vocab):
        raise ValueError(f"k must be 1 to {min(MOST, vocab)}, not {k}")
    chunks = triton.cdiv(vocab, CHUNK)

    def room(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(lines, *shape, dtype=dtype, device=device)

    best = Best(room(torch.float32, chunks, k), room(torch.int32, chunks, k), room(torch.float32, chunks))
    tokens, scores = room(torch.int64, k), room(torch.float32, k)
    top_of_chunk[(lines, chunks)](logits, logits.stride(0), vocab, best, K=k, CHUNK=CHUNK, num_warps=4)
    top_of_line[(lines,)](
        best, targets, tokens, scores, chunks, K=k, CHUNKS=padded(chunks), WIDE=padded(chunks * k), num_warps=4
    )
    return tokens, scores


@triton.jit
def top_of_chunk(logits, stride, vocab, best, K: tl.constexpr, CHUNK: tl.constexpr):
    """The K best tokens of one chunk of one line, one after the other, and its sum of weights."""
    line, chunk, chunks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    left = tokens < vocab
    x = ordered(tl.load(logits + line * stride + tokens, left, NEVER).to(tl.float32))
    place = line * chunks + chunk
    top = tl.max(x)
    tl.store(best.weight + place, tl.sum(libdevice.exp(x - tl.where(top == NEVER, 0.0, top))))
    for i in range(K):
        score = tl.max(tl.where(left, x, NEVER))
        token = tl.min(tl.where(left & (x == score), tokens, NO_TOKEN))
        tl.store(best.score + place * K + i, score)
        tl.store(best.token + place * K + i, token)
        left = left & (tokens != token)


@triton.jit
def top_of_line(best, targets, tokens, scores, chunks, K: tl.constexpr, CHUNKS: tl.constexpr, WIDE: tl.constexpr):
    """The K best tokens of one line and their log-probabilities."""
    line, chunk = tl.program_id(0).to(tl.int64), tl.arange(0, CHUNKS)
    there = chunk < chunks
    tops = tl.load(best.score + (line * chunks + chunk) * K, there, NEVER)
    weights = tl.load(best.weight + line * chunks + chunk, there, 0.0)
    top = tl.max(tops)
    top = tl.where(top == NEVER, 0.0, top)
    total = libdevice.log(tl.sum(weights * libdevice.exp(tops - top)))
    at = tl.arange(0, WIDE)
    score = tl.load(best.score + line * chunks * K + at, at < chunks * K, NEVER)
    token = tl.load(best.token + line * chunks * K + at, at < chunks * K, NO_TOKEN)
    for i in range(K):
        highest = tl.max(tl.where(token < NO_TOKEN, score, NEVER))
        winner = tl.min(tl.where(score == highest, token, NO_TOKEN))
        tl.store(scores + line * K + i, highest - top - total)
        target = winner.to(tl.int64)
        if targets is not None:
            target = tl.load(targets + winner)
        tl.store(tokens + line * K + i, target)
        token = tl.where(token == winner, NO_TOKEN, token)
