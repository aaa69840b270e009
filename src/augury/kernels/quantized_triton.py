"""Products with quantised weights on a GPU: codes are read, and become numbers just before they are multiplied.

A code is exact in 16 bits, so nothing is rounded on the way: sums are float32, and a line's scale multiplies them once,
at the end or group by group. As in matrix_triton, the order of a sum depends on nothing but the matrix, so that a row
has the same bits in all products of up to 32 rows, the same in all of more, and the same in all if `steady`: the depth
is summed in segments of one size, added in their order. Few rows wait for memory, so several programs share the depth;
the one that finishes last adds up their parts.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.codes_triton import dot, float_of, number_of, sixteenth
from augury.kernels.parts_triton import counters, join_parts
from augury.kernels.quantized import Quantized

STEP = 128  # of the depth, where scales are a line's; otherwise a group
LANES = 64  # lines of the matrix that one instruction takes
PROGRAMS, MOST_SEGMENTS, SHORTEST = 256, 4, 512  # segments: until so many programs read the matrix, down to this depth
FEW_ROWS = 64  # up to this, segments have programs of their own
NATIVE, BITS, HALVES = 0, 1, 2  # codes: 8-bit floats that the GPU converts, the same by shifting bits, 4-bit integers


class QuantizedTile(NamedTuple):
    """The part of a product that one program computes, and how it is launched."""

    rows: int
    outs: int
    warps: int
    stages: int


# The tile by the most rows. Two warps are fastest for few rows, and multiply by another instruction than four.
MANY = (1 << 30, QuantizedTile(128, 128, 8, 3))
TILES = (
    (16, QuantizedTile(16, 64, 2, 4)),
    (32, QuantizedTile(32, 64, 2, 4)),
    (128, QuantizedTile(64, 128, 4, 3)),
    MANY,
)
STEADY = (
    (16, QuantizedTile(16, 64, 4, 5)),
    (32, QuantizedTile(32, 64, 4, 4)),
    (128, QuantizedTile(64, 64, 4, 4)),
    MANY,
)
WIDE = QuantizedTile(16, 32, 4, 2)  # float32


def linear(
    x: Tensor, weight: Quantized, bias: Tensor | None = None, kind: int | None = None, steady: bool = False
) -> Tensor:
    """x [R, in] times the matrix, plus bias, in the type of x; `kind`: how codes are read, by default see kind_of."""
    rows, outs, depth = len(x), len(weight), weight.width
    grouped = len(weight.scales) > 1 or weight.halved
    tiles = STEADY if steady or grouped else TILES  # the wider tiles have no registers for the scales of groups
    tile = WIDE if x.dtype == torch.float32 else next(tile for most, tile in tiles if rows <= most)
    step = weight.group if grouped else STEP
    segments = segments_of(outs, depth, step)
    apart = segments if rows <= FEW_ROWS else 1
    kind = kind_of(weight, x.device) if kind is None else kind
    grid = triton.cdiv(rows, tile.rows) * triton.cdiv(outs, tile.outs)
    out = torch.empty(rows, outs, dtype=x.dtype, device=x.device)
    parts = torch.empty(apart, rows, outs, dtype=torch.float32, device=x.device) if apart > 1 else out
    _linear[(grid, apart)](
        x,
        weight.codes.view(torch.uint8),
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        out if bias is None else bias,
        parts,
        out,
        counters(x.device, grid if apart > 1 else 1),
        rows,
        outs,
        depth,
        x.stride(0),
        weight.codes.stride(0),
        KIND=kind,
        GROUPED=grouped,
        BIASED=bias is not None,
        EVEN=depth % (step * segments) == 0,
        EXACT=x.dtype == torch.float32,
        SEGMENT=triton.cdiv(depth, step * segments) * step,
        EACH=segments // apart,
        APART=apart,
        ROWS=tile.rows,
        OUTS=tile.outs,
        STEP=step,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


def segments_of(outs: int, depth: int, step: int) -> int:
    """How many segments a matrix is read in; depends on its shape alone."""
    segments, tiles = 1, triton.cdiv(outs, LANES)
    while tiles * segments < PROGRAMS and segments < MOST_SEGMENTS and depth // (2 * segments) >= max(step, SHORTEST):
        segments *= 2
    return segments


def kind_of(weight: Quantized, device: torch.device) -> int:
    """How this device reads such codes: GPUs before Ada have no 8-bit floats, nor has Triton's interpreter."""
    return HALVES if weight.halved else NATIVE if _converts(device) else BITS


@cache
def _converts(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def unpack(weight: Quantized, dtype: torch.dtype, kind: int | None = None) -> Tensor:
    """The matrix in `dtype`: for many rows, whose product takes longer than writing the matrix out."""
    out = torch.empty(len(weight), weight.width, dtype=dtype, device=weight.codes.device)
    kind = kind_of(weight, weight.codes.device) if kind is None else kind
    step = STEP if len(weight.scales) == 1 and not weight.halved else weight.group
    _unpack[(triton.cdiv(len(weight), 32), triton.cdiv(weight.width, step))](
        weight.codes.view(torch.uint8),
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        out,
        len(weight),
        weight.width,
        weight.codes.stride(0),
        KIND=kind,
        GROUPED=len(weight.scales) > 1 or weight.halved,
        OUTS=32,
        STEP=step,
        num_warps=4,
    )
    return out


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x,
    codes,
    scales,
    zeros,
    bias,
    parts,
    out,
    arrived,
    rows,
    outs,
    depth,
    x_row,
    code_row,
    KIND: tl.constexpr,
    GROUPED: tl.constexpr,
    BIASED: tl.constexpr,
    EVEN: tl.constexpr,
    EXACT: tl.constexpr,
    SEGMENT: tl.constexpr,
    EACH: tl.constexpr,
    APART: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
):
    # Programs that read the same part of the matrix run together, so that it comes from memory once.
    tiles = tl.cdiv(rows, ROWS)
    tile, part = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    r, o = tile * ROWS + tl.arange(0, ROWS), part * OUTS + tl.arange(0, OUTS)
    total = _segment(
        x, codes, scales, zeros, r, o, rows, outs, depth, tl.program_id(1) * EACH * SEGMENT, x_row, code_row,
        KIND, GROUPED, EVEN, EXACT, SEGMENT, STEP,
    )  # fmt: skip
    for i in range(1, EACH):
        total += _segment(
            x, codes, scales, zeros, r, o, rows, outs, depth, (tl.program_id(1) * EACH + i) * SEGMENT, x_row, code_row,
            KIND, GROUPED, EVEN, EXACT, SEGMENT, STEP,
        )  # fmt: skip
    there = (r < rows)[None, :] & (o < outs)[:, None]
    at = r[None, :].to(tl.int64) * outs + o[:, None]
    done = APART == 1
    if APART > 1:
        size = rows.to(tl.int64) * outs
        done, total = join_parts(total, parts, at, there, size, arrived + tl.program_id(0), tl.program_id(1), APART)
    if done:
        if not EXACT:
            total *= 16.0  # see sixteenth
        if not GROUPED:
            total *= tl.load(scales + o, mask=o < outs, other=0.0)[:, None]
        if BIASED:
            total += tl.load(bias + o, mask=o < outs, other=0.0).to(tl.float32)[:, None]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _segment(
    x,
    codes,
    scales,
    zeros,
    r,
    o,
    rows,
    outs,
    depth,
    begin,
    x_row,
    code_row,
    KIND: tl.constexpr,
    GROUPED: tl.constexpr,
    EVEN: tl.constexpr,
    EXACT: tl.constexpr,
    SEGMENT: tl.constexpr,
    STEP: tl.constexpr,
):
    """The products of one segment of the depth."""
    SHARE: tl.constexpr = 2 if KIND == 2 else 1  # codes in a byte
    WIDTH: tl.constexpr = STEP // SHARE
    k = tl.arange(0, WIDTH)
    there, wanted = (r < rows)[None, :], (o < outs)[:, None]
    x_at = x + r[None, :].to(tl.int64) * x_row + begin + k[:, None]
    code_at = codes + o[:, None].to(tl.int64) * code_row + begin // SHARE + k[None, :]
    kind = tl.float32 if EXACT else tl.float16
    sum_ = tl.zeros([o.shape[0], r.shape[0]], tl.float32)
    for past in range(0, SEGMENT, STEP):
        place = begin + past
        if EVEN:
            code, right = tl.load(code_at, mask=wanted, other=0), tl.load(x_at, mask=there, other=0.0)
        else:  # the mask of codes covers the halves too: a line of them is whole groups
            code = tl.load(code_at, mask=wanted & (place + k < depth)[None, :], other=0)
            right = tl.load(x_at, mask=there & (place + k < depth)[:, None], other=0.0)
        if not EXACT:
            right = sixteenth(right)
        if GROUPED:
            inside = (o < outs) & (place < depth)
            scale = tl.load(scales + place // STEP * outs + o, mask=inside, other=0.0)
            if KIND == 2:
                if EVEN:
                    second = tl.load(x_at + WIDTH, mask=there, other=0.0)
                else:
                    second = tl.load(x_at + WIDTH, mask=there & (place + WIDTH + k < depth)[:, None], other=0.0)
                zero = tl.load(zeros + place // STEP * outs + o, mask=inside, other=0)
                if not EXACT:
                    second = sixteenth(second)
                part = dot(number_of(code & 15, zero, kind), right, EXACT)
                part += dot(number_of(code >> 4, zero, kind), second, EXACT)
            else:
                part = dot(float_of(code, kind, KIND), right, EXACT)
            sum_ += part * scale[:, None]
        elif EXACT:
            sum_ = tl.dot(float_of(code, kind, KIND), right, sum_, input_precision="ieee")
        else:
            sum_ = tl.dot(float_of(code, kind, KIND), right, sum_)
        x_at += STEP
        code_at += WIDTH
    return sum_


@triton.jit
def _unpack(
    codes,
    scales,
    zeros,
    out,
    outs,
    depth,
    code_row,
    KIND: tl.constexpr,
    GROUPED: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
):
    SHARE: tl.constexpr = 2 if KIND == 2 else 1
    WIDTH: tl.constexpr = STEP // SHARE
    o, step, k = tl.program_id(0) * OUTS + tl.arange(0, OUTS), tl.program_id(1), tl.arange(0, WIDTH)
    wanted = o < outs
    inside = wanted[:, None] & (step * STEP + k < depth)[None, :]
    code = tl.load(codes + o[:, None].to(tl.int64) * code_row + step * WIDTH + k[None, :], mask=inside, other=0)
    scale = tl.load(scales + (step * outs if GROUPED else 0) + o, mask=wanted, other=0.0)[:, None]
    to = out + o[:, None].to(tl.int64) * depth + step * STEP + k[None, :]
    if KIND == 2:
        zero = tl.load(zeros + step * outs + o, mask=wanted, other=0)
        tl.store(to, (number_of(code & 15, zero, tl.float32) * scale).to(out.dtype.element_ty), mask=inside)
        tl.store(to + WIDTH, (number_of(code >> 4, zero, tl.float32) * scale).to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(to, (float_of(code, tl.float32, KIND) * scale).to(out.dtype.element_ty), mask=inside)
