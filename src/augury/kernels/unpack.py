"""Packed weights and the numbers they stand for, in torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 32  # weights that share a shift, and one scale or two


@dataclass(slots=True)
class Packed:
    """A matrix [out, in] in the precision of its file; see model/packed.py."""

    codes: Tensor  # uint8 [out, in / 2]: in each block of 16 bytes, low halves then high halves; or int8 [out, in]
    scales: Tensor  # float32 [out, in / 32, 2]: scale and shift; with int8 codes 3: scales of both halves, and shift

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def width(self) -> int:
        """The length of a line, `in`."""
        return self.scales.shape[1] * BLOCK

    def unpacked(self) -> Tensor:
        """The float32 matrix."""
        return unpacked(self.codes.view(len(self), self.scales.shape[1], -1), self.scales)

    def some(self, wanted: Tensor) -> Packed:
        """The wanted lines, still packed."""
        return Packed(self.codes[wanted], self.scales[wanted])

    def lines(self, wanted: Tensor) -> Tensor:
        """The wanted lines of the float32 matrix."""
        return self.some(wanted).unpacked()


def unpacked(codes: Tensor, scales: Tensor) -> Tensor:
    """Lines [n, width] from their codes [n, blocks, 16 or 32] and scales [n, blocks, 2 or 3]."""
    if codes.dtype == torch.uint8:
        codes, scale = torch.cat([codes & 15, codes >> 4], -1), scales[..., :1]
    else:
        scale = scales[..., :2].repeat_interleave(BLOCK // 2, -1)
    return torch.addcmul(scales[..., -1:], codes.float(), scale).view(len(codes), -1)
