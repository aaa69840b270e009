"""Mixtures of experts on the GPU: products by blocks of rows that share an expert.

A row's bits do not depend on the other rows of its block: as in matrix_triton.py the order of a sum depends on the
matrix alone, and the matrix is the left operand, so that the instruction stays the same when a block has 16 rows or
128. So the same kernels serve exact mode.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.matrix_triton import STEP, WIDE, MatrixTile
from augury.kernels.route_triton import group

# The tile by the most pairs per expert on average: few pairs wait for the matrices, many for arithmetic.
TILES = (
    (8, MatrixTile(16, 64, 4, 5)),
    (24, MatrixTile(32, 64, 4, 4)),
    (64, MatrixTile(64, 64, 4, 4)),
    (1 << 30, MatrixTile(128, 64, 4, 3)),
)
WIDTH = 1024  # numbers of a row that are added up by one program


def run_experts(x: Tensor, gate_up: Tensor, down: Tensor, experts: Tensor, shares: Tensor) -> Tensor:
    """See Ops.run_experts; in the matrices' arithmetic."""
    kind, x = x.dtype, x.to(down.dtype)
    (rows, hidden), (count, _, inner) = x.shape, down.shape
    pairs, places = experts.numel(), experts.shape[1]
    tile = WIDE if x.dtype == torch.float32 else next(tile for most, tile in TILES if pairs <= most * count)
    blocks = group(experts, count, tile.rows)
    opened = torch.empty(pairs, inner, dtype=x.dtype, device=x.device)
    made = torch.empty(pairs, hidden, dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    for given, weight, into, several in ((x, gate_up, opened, places), (opened, down, made, 1)):
        _product[(len(blocks.owner), triton.cdiv(into.shape[1], tile.outs))](
            given,
            weight,
            *blocks,
            into,
            pairs,
            into.shape[1],
            DEPTH=given.shape[1],
            PLACES=several,
            GATED=into is opened,
            EVEN=given.shape[1] % STEP == 0,
            EXACT=x.dtype == torch.float32,
            ROWS=tile.rows,
            OUTS=tile.outs,
            STEP=STEP,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    _join[(rows, triton.cdiv(hidden, WIDTH))](made, shares, out, hidden, PLACES=places, WIDTH=WIDTH)
    return out.to(kind)


@triton.jit(do_not_specialize=["pairs"])
def _product(
    x,
    weight,
    order,
    owner,
    out,
    pairs,
    outs,
    DEPTH: tl.constexpr,
    PLACES: tl.constexpr,
    GATED: tl.constexpr,
    EVEN: tl.constexpr,
    EXACT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
):
    """A block of pairs times some lines of its expert's matrix; GATED: of both halves, and silu(first) * second.

    A pair reads line pair / PLACES of x and writes line `pair` of out.
    """
    # Blocks of one expert follow each other, so programs that read the same part of a matrix run together.
    expert = tl.load(owner + tl.program_id(0))
    if expert < 0:
        return
    pair = tl.load(order + tl.program_id(0) * ROWS + tl.arange(0, ROWS))
    o, k = tl.program_id(1) * OUTS + tl.arange(0, OUTS), tl.arange(0, STEP)
    there, wanted = (pair < pairs)[None, :], (o < outs)[:, None]
    x_at = x + (pair // PLACES)[None, :].to(tl.int64) * DEPTH + k[:, None]
    halves = 2 if GATED else 1
    line = expert.to(tl.int64) * outs * halves
    first_at = weight + (line + o[:, None]) * DEPTH + k[None, :]
    second_at = first_at + outs.to(tl.int64) * DEPTH
    first, second = tl.zeros([OUTS, ROWS], tl.float32), tl.zeros([OUTS, ROWS], tl.float32)
    for past in range(0, DEPTH, STEP):
        rows_in, lines_in = there, wanted
        if not EVEN:
            rows_in, lines_in = there & (past + k < DEPTH)[:, None], wanted & (past + k < DEPTH)[None, :]
        right = tl.load(x_at, mask=rows_in, other=0.0)
        first = _dot(tl.load(first_at, mask=lines_in, other=0.0), right, first, EXACT)
        if GATED:
            second = _dot(tl.load(second_at, mask=lines_in, other=0.0), right, second, EXACT)
        x_at += STEP
        first_at += STEP
        second_at += STEP
    kind = out.dtype.element_ty
    result = first.to(kind)
    if GATED:  # rounded where the reference rounds
        gate = result.to(tl.float32)
        silu = (gate / (1 + tl.exp(-gate))).to(kind)
        result = (silu.to(tl.float32) * second.to(kind).to(tl.float32)).to(kind)
    tl.store(out + pair[None, :].to(tl.int64) * outs + o[:, None], result, mask=there & wanted)


@triton.jit
def _dot(left, right, total, EXACT: tl.constexpr):
    if EXACT:
        return tl.dot(left, right, total, input_precision="ieee")
    return tl.dot(left, right, total)


@triton.jit
def _join(made, shares, out, hidden, PLACES: tl.constexpr, WIDTH: tl.constexpr):
    """Add up the outputs of each row's experts, times their shares, in their order."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < hidden
    total = tl.zeros([WIDTH], tl.float32)
    for place in tl.static_range(PLACES):
        pair = row * PLACES + place
        one = tl.load(made + pair * hidden + column, mask=inside, other=0.0).to(tl.float32)
        total += one * tl.load(shares + pair)
    tl.store(out + row * hidden + column, total.to(out.dtype.element_ty), mask=inside)
