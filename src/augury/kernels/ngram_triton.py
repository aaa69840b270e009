"""Prompt lookup on the GPU in two kernels that read each history to its end; see drafters/ngram_gpu.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 1024


def continuation(
    history: Tensor, slots: Tensor, lengths: Tensor, min_n: int, max_n: int, latest: bool, longest: int
) -> Tensor:
    """Where the text after the longest match begins in each history, or its length if there is none; int64 [G]."""
    groups = len(slots)
    best = torch.zeros(groups, dtype=torch.int64, device=history.device)
    start = torch.empty_like(best)
    width = history.shape[1]
    _match[(groups, triton.cdiv(min(longest, width), CHUNK))](
        history, slots, lengths, best, history.stride(0), width, MIN=min_n, MAX=max_n, LATEST=latest, CHUNK=CHUNK
    )
    _begin[(groups,)](best, lengths, start, width, LATEST=latest, num_warps=1)
    return start


@triton.jit(do_not_specialize=["stride", "width"])
def _match(
    history,
    slots,
    lengths,
    best,
    stride,
    width,
    MIN: tl.constexpr,
    MAX: tl.constexpr,
    LATEST: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The best of one chunk: the longest match, and of equals the latest or the earliest."""
    g, first = tl.program_id(0), tl.program_id(1) * CHUNK
    end = tl.load(lengths + g) - 1  # the last known token
    if first >= end:
        return
    text = history + tl.load(slots + g) * stride
    place = first + tl.arange(0, CHUNK)
    same, matched = place < end, tl.zeros([CHUNK], tl.int64)
    for back in tl.static_range(MAX):
        wanted = tl.load(text + end - back, mask=end >= back, other=-1)
        there = tl.load(text + place - back, mask=same & (place >= back), other=-2)
        same = same & (place >= back) & (end >= back) & (there == wanted)
        matched += same.to(tl.int64)
    rank = place.to(tl.int64) + 1 if LATEST else width - place.to(tl.int64)
    score = tl.where(matched >= MIN, (matched << 32) + rank, 0)
    tl.atomic_max(best + g, tl.max(score, 0))


@triton.jit(do_not_specialize=["width"])
def _begin(best, lengths, start, width, LATEST: tl.constexpr):
    g = tl.program_id(0)
    score = tl.load(best + g)
    rank = score & 0xFFFFFFFF
    after = rank if LATEST else width - rank + 1
    tl.store(start + g, tl.where(score > 0, after, tl.load(lengths + g)))
