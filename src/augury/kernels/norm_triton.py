"""RMS norms on the GPU: one program per row, statistics in float32, rounded where the torch reference rounds."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.ahead_triton import await_inputs, launched_ahead


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See Ops.rms_norm; rows may lie apart (a stride), their elements may not."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    ahead = launched_ahead(x)
    _rms_norm[(rows,)](x, weight, out, x.stride(0), width, eps, BLOCK=block, num_warps=_warps(width), **ahead)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See Ops.add_rms_norm; x becomes the new residual."""
    out = torch.empty_like(x)
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    ahead = launched_ahead(x)
    _add_rms_norm[(rows,)](x, residual, weight, out, width, eps, BLOCK=block, num_warps=_warps(width), **ahead)
    return out, x


def _warps(width: int) -> int:
    return 8 if width > 2048 else 4


@triton.jit
def _rms_norm(x, weight, out, stride, width, eps, BLOCK: tl.constexpr, AHEAD: tl.constexpr):
    await_inputs(AHEAD)
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row * stride + column, mask=inside, other=0.0)
    _normalise(value, weight, out + row * width, column, inside, width, eps)


@triton.jit
def _add_rms_norm(x, residual, weight, out, width, eps, BLOCK: tl.constexpr, AHEAD: tl.constexpr):
    await_inputs(AHEAD)
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < width
    at = row * width + column
    added = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value = (tl.load(residual + at, mask=inside, other=0.0).to(tl.float32) + added).to(x.dtype.element_ty)
    tl.store(x + at, value, mask=inside)
    _normalise(value, weight, out + row * width, column, inside, width, eps)


@triton.jit
def _normalise(value, weight, out, column, inside, width, eps):
    """The norm of one row in registers; one rounding before the weight, as the reference has it."""
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    normed = (wide * scale).to(value.dtype).to(tl.float32)
    scaled = normed * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + column, scaled.to(value.dtype), mask=inside)
