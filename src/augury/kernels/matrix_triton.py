"""A matrix product whose every row has the same bits, however many rows share the call: exact mode on a GPU.

cuBLAS chooses a kernel by the number of rows, and kernels add in different orders. Here the order of a sum depends on
nothing but the matrix: its depth in one or four segments, each in steps of one size, the segments added in their order.
Whether one program works through the segments or each has its own is a matter of speed alone. The matrix is the left
operand, so that the instruction stays the same when a tile holds 16 rows or 256.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.ahead_triton import await_inputs, launched_ahead
from augury.kernels.parts_triton import counters, join_parts

STEP = 64  # of the depth, in exact mode: the same for every tile
DEEP, SEGMENTS = 8192, 4  # a matrix this deep is read in so many segments: all at once for few rows
FEW_ROWS = 64


class MatrixTile(NamedTuple):
    """The part of a product that one program computes, and how it is launched."""

    rows: int
    outs: int
    warps: int
    stages: int
    step: int = STEP


# The tile by the most rows: few rows wait for the matrix, many for arithmetic.
TILES = (
    (16, MatrixTile(16, 64, 4, 6)),
    (32, MatrixTile(32, 64, 4, 6)),
    (64, MatrixTile(64, 64, 4, 5)),
    (128, MatrixTile(128, 64, 4, 4)),
    (1 << 30, MatrixTile(256, 128, 8, 3)),
)
WIDE = MatrixTile(16, 32, 4, 2)  # float32


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [R, depth] times weight [out, depth], plus bias, in the weight's arithmetic."""
    given, x = x.dtype, x.to(weight.dtype)
    tile = WIDE if weight.dtype == torch.float32 else next(tile for most, tile in TILES if len(x) <= most)
    return multiply(x, weight, bias, tile, segments_of(weight)).to(given)


def segments_of(weight: Tensor) -> int:
    """How many segments exact mode cuts the depth into."""
    return SEGMENTS if weight.shape[1] >= DEEP else 1


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, tile: MatrixTile, segments: int = 1) -> Tensor:
    """The product in tiles of this kind, the depth summed in so many segments."""
    rows, outs, depth = len(x), *weight.shape
    apart = segments if rows <= FEW_ROWS else 1  # programs that share the depth
    grid = triton.cdiv(rows, tile.rows) * triton.cdiv(outs, tile.outs)
    out = torch.empty(rows, outs, dtype=weight.dtype, device=x.device)
    parts = torch.empty(apart, rows, outs, dtype=torch.float32, device=x.device) if apart > 1 else out
    _linear[(grid, apart)](
        x,
        weight,
        weight if bias is None else bias,
        parts,
        out,
        counters(x.device, grid if apart > 1 else 1),
        rows,
        outs,
        depth,
        x.stride(0),
        weight.stride(0),
        BIASED=bias is not None,
        EVEN=depth % (tile.step * segments) == 0,
        EXACT=weight.dtype == torch.float32,
        SEGMENT=triton.cdiv(depth, tile.step * segments) * tile.step,
        EACH=segments // apart,
        APART=apart,
        ROWS=tile.rows,
        OUTS=tile.outs,
        STEP=tile.step,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **launched_ahead(x),
    )
    return out


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x,
    weight,
    bias,
    parts,
    out,
    arrived,
    rows,
    outs,
    depth,
    x_row,
    weight_row,
    BIASED: tl.constexpr,
    EVEN: tl.constexpr,
    EXACT: tl.constexpr,
    SEGMENT: tl.constexpr,
    EACH: tl.constexpr,
    APART: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
    AHEAD: tl.constexpr,
):
    # Programs that read the same part of the matrix run together, so that it comes from memory once.
    tiles = tl.cdiv(rows, ROWS)
    tile, part = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    r, o = tile * ROWS + tl.arange(0, ROWS), part * OUTS + tl.arange(0, OUTS)
    await_inputs(AHEAD)
    total = tl.zeros([OUTS, ROWS], tl.float32)
    for i in range(EACH):
        begin = (tl.program_id(1) * EACH + i) * SEGMENT
        total += _segment(x, weight, r, o, rows, outs, depth, begin, x_row, weight_row, EVEN, EXACT, SEGMENT, STEP)
    there = (r < rows)[None, :] & (o < outs)[:, None]
    at = r[None, :].to(tl.int64) * outs + o[:, None]
    done = APART == 1
    if APART > 1:
        size = rows.to(tl.int64) * outs
        done, total = join_parts(total, parts, at, there, size, arrived + tl.program_id(0), tl.program_id(1), APART)
    if done:
        if BIASED:
            total += tl.load(bias + o, mask=o < outs, other=0.0).to(tl.float32)[:, None]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _segment(
    x,
    weight,
    r,
    o,
    rows,
    outs,
    depth,
    begin,
    x_row,
    weight_row,
    EVEN: tl.constexpr,
    EXACT: tl.constexpr,
    SEGMENT: tl.constexpr,
    STEP: tl.constexpr,
):
    """The products of one segment of the depth."""
    k = begin + tl.arange(0, STEP)
    there, wanted = (r < rows)[None, :], (o < outs)[:, None]
    x_at = x + r[None, :].to(tl.int64) * x_row + k[:, None]
    weight_at = weight + o[:, None].to(tl.int64) * weight_row + k[None, :]
    sum_ = tl.zeros([o.shape[0], r.shape[0]], tl.float32)
    for past in range(0, SEGMENT, STEP):
        if EVEN:
            left, right = tl.load(weight_at, mask=wanted, other=0.0), tl.load(x_at, mask=there, other=0.0)
        else:
            inside = past + k < depth
            left = tl.load(weight_at, mask=wanted & inside[None, :], other=0.0)
            right = tl.load(x_at, mask=there & inside[:, None], other=0.0)
        if EXACT:
            sum_ = tl.dot(left, right, sum_, input_precision="ieee")
        else:
            sum_ = tl.dot(left, right, sum_)
        x_at += STEP
        weight_at += STEP
    return sum_
