"""The gated activation on the GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.ahead_triton import await_inputs, launched_ahead

BLOCK = 1024


def silu_mul(gate_up: Tensor) -> Tensor:
    """See Ops.silu_mul."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    _silu_mul[(rows, triton.cdiv(width, BLOCK))](gate_up, out, width, BLOCK=BLOCK, **launched_ahead(out))
    return out


@triton.jit
def _silu_mul(gate_up, out, width, BLOCK: tl.constexpr, AHEAD: tl.constexpr):
    await_inputs(AHEAD)
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0)
    opened = (gate / (1 + tl.exp(-gate))).to(up.dtype)  # rounded here, as the reference rounds
    tl.store(out + row * width + column, (opened.to(tl.float32) * up.to(tl.float32)).to(up.dtype), mask=inside)
