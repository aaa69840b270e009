"""The best of some tokens in Triton: `contest` of kernels/verify_share.py.

A chunk of a line is read once. Noise is exact for those tokens alone that bounds cannot rule out, as in the whole draw.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.draw_triton import EXACT, race_block
from augury.kernels.edits_triton import NEVER, ordered
from augury.kernels.floor_triton import distances, z_of
from augury.kernels.peak_triton import NO_TOKEN, chunk_of, warps_of
from augury.verify.sampling import Draws, SlotSampling


def contest(
    logits: Tensor, top: Tensor, draws: Draws, sampling: SlotSampling, first: int, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """The best score of every chunk and its token, float32 and int32 [L, C]; -inf if no token can win."""
    lines, width = logits.shape
    chunk = chunk or chunk_of(max(width, 1))
    chunks = max(1, triton.cdiv(width, chunk))
    scores = torch.empty(lines, chunks, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(lines, chunks, dtype=torch.int32, device=logits.device)
    find_best[(lines, chunks)](
        logits,
        logits.stride(0),
        top,
        draws.slots,
        draws.positions,
        sampling.temperature,
        sampling.seed,
        first,
        width,
        scores,
        tokens,
        chunks,
        CHUNK=chunk,
        num_warps=warps_of(chunk, 16),
        maxnreg=128,
        **EXACT,
    )
    return scores, tokens


@triton.jit(do_not_specialize=["first", "width"])
def find_best(
    logits,
    stride,
    top,
    slots,
    positions,
    temperatures,
    seeds,
    first,
    width,
    scores,
    tokens,
    chunks,
    CHUNK: tl.constexpr,
):
    """The best token of one chunk of one line."""
    line, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot, place = tl.load(slots + line), line * chunks + chunk
    own = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = own < width
    x = ordered(tl.load(logits + line * stride + own, inside, NEVER).to(tl.float32))
    temperature = tl.load(temperatures + slot)
    best, winner = tl.max(x), tl.full((), NO_TOKEN, tl.int32)
    if best > NEVER:
        if temperature > 0:
            z = z_of(distances(x, tl.load(top + line), temperature))
            position, seed, start = tl.load(positions + line), tl.load(seeds + slot), first + chunk * CHUNK
            best, winner = race_block(first + own, z, inside & (x > NEVER), start, position, seed, CHUNK)
        else:
            winner = tl.min(tl.where(inside & (x == best), first + own, NO_TOKEN))
    tl.store(scores + place, best)
    tl.store(tokens + place, winner)
