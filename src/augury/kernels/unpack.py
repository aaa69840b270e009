"""What packed weights mean, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32  # weights that share a shift, and one scale or two


def unpacked(codes: Tensor, scales: Tensor) -> Tensor:
    """Lines [n, width] from their codes [n, blocks, 16 or 32] and scales [n, blocks, 2 or 3]."""
    if codes.dtype == torch.uint8:
        codes, scale = torch.cat([codes & 15, codes >> 4], -1), scales[..., :1]
    else:
        scale = scales[..., :2].repeat_interleave(BLOCK // 2, -1)
    return torch.addcmul(scales[..., -1:], codes.float(), scale).view(len(codes), -1)
