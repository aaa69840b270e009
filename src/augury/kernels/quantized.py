"""Weights in 8-bit floats or 4-bit integers, for GPUs: a third kind of matrix, besides plain and packed ones.

A weight is scale * (code - zero). A scale belongs to one line of the matrix and a group of its columns, or to the whole
line. Activations keep their own type: such a matrix means the same as dequantised, for one row and for many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # of FP8
NIBBLE = 15


@dataclass(slots=True)
class Quantized:
    """A matrix [out, in]."""

    codes: Tensor  # FP8 [out, in]; or uint8 [out, in / 2]: low halves are the first half of a group's codes
    scales: Tensor  # float32 [groups, out]: lines lie beside each other, as a program reads them
    group: int  # columns that share a scale; of FP8 the last group may have fewer
    zeros: Tensor | None = None  # uint8 [groups, out], with 4-bit codes

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def halved(self) -> bool:
        """Whether codes have 4 bits."""
        return self.codes.dtype == torch.uint8

    @property
    def width(self) -> int:
        """The length of a line, `in`."""
        return int(self.codes.shape[1]) * (2 if self.halved else 1)

    @property
    def num_bytes(self) -> int:
        """Bytes a product reads."""
        parts = (self.codes, self.scales, *(() if self.zeros is None else (self.zeros,)))
        return sum(part.numel() * part.element_size() for part in parts)

    def unpacked(self) -> Tensor:
        """The float32 matrix."""
        if not self.halved:
            return self.codes.float() * self._wide(self.scales)
        assert self.zeros is not None
        grouped = self.codes.view(len(self), -1, self.group // 2)
        codes = torch.cat((grouped & NIBBLE, grouped >> 4), -1).view(len(self), -1)
        return (codes.float() - self._wide(self.zeros).float()) * self._wide(self.scales)

    def _wide(self, factors: Tensor) -> Tensor:
        """A factor for every weight, or one for each line."""
        if len(factors) == 1:
            return factors.t()
        return factors.t().repeat_interleave(self.group, 1)[:, : self.width]

    def some(self, wanted: Tensor) -> Quantized:
        """The wanted lines, still quantised."""
        at = wanted.to(self.codes.device)
        codes = self.codes.view(torch.uint8)[at].view(self.codes.dtype)  # torch cannot index 8-bit floats everywhere
        zeros = None if self.zeros is None else self.zeros[:, at].contiguous()
        return Quantized(codes, self.scales[:, at].contiguous(), self.group, zeros)

    def lines(self, wanted: Tensor) -> Tensor:
        """The wanted lines of the float32 matrix."""
        return self.some(wanted).unpacked()


def quantised(matrix: Tensor) -> Quantized:
    """A matrix rounded to FP8, scaled so that every line's largest weight becomes the largest FP8 number."""
    wide = matrix.float()
    scales = wide.abs().amax(1, keepdim=True) / LARGEST
    scales = torch.where(scales > 0, scales, 1.0)
    return Quantized((wide / scales).clamp(-LARGEST, LARGEST).to(FP8), scales.t().contiguous(), matrix.shape[1])


def halves(codes: Tensor, group: int) -> Tensor:
    """4-bit codes uint8 [out, in] as bytes [out, in / 2]; see Quantized."""
    first, second = codes.view(len(codes), -1, 2, group // 2).unbind(2)
    return (first | second << 4).view(len(codes), -1)


def stacked(parts: Sequence[Quantized]) -> Quantized | None:
    """Matrices one below the other; None if they have different kinds of codes or groups that do not fit together."""
    first = parts[0]
    if len(parts) == 1:
        return first
    finest = min(parts, key=lambda part: part.group)
    if any(part.halved != first.halved or not _divides(finest, part) for part in parts):
        return None
    codes = torch.cat([part.codes.view(torch.uint8) for part in parts]).view(first.codes.dtype)
    scales = [_spread(part.scales, len(finest.scales)) for part in parts]
    zeros = [_spread(part.zeros, len(finest.scales)) for part in parts if part.zeros is not None]
    return Quantized(codes, torch.cat(scales, 1), finest.group, torch.cat(zeros, 1) if zeros else None)


def _divides(finest: Quantized, part: Quantized) -> bool:
    """Whether a part can take the finest groups: one scale per line can be repeated, 4-bit codes keep their groups."""
    return part.group == finest.group or (len(part.scales) == 1 and not part.halved)


def _spread(factors: Tensor, groups: int) -> Tensor:
    return factors if len(factors) == groups else factors.expand(groups, -1)
