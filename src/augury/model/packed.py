"""Matrices in the precision of their file: 4- or 8-bit codes, and a scale and a shift for every 32 of them.

A weight is scale * code + shift. The scale has 11 bits and a code at most 8, so the product is exact in float32 and the
sum is rounded once: unpacking gives, to the bit, the float32 weight that conversion wrote. A packed model therefore
computes what the float32 model computes; it only reads a fifth of the memory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from augury.model.errors import ModelError

PACKED_FILE = "packed.safetensors"
BLOCK = 32


@dataclass(slots=True)
class Packed:
    """A matrix [out, in]."""

    codes: Tensor  # uint8 [out, in / 2]: in each block of 16 bytes, low halves then high halves; or int8 [out, in]
    scales: Tensor  # float32 [out, in / 32, 2]: scale and shift

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def width(self) -> int:
        """The length of a line, `in`."""
        return self.scales.shape[1] * BLOCK

    def unpacked(self) -> Tensor:
        """The float32 matrix."""
        if self.codes.dtype == torch.uint8:
            halves = self.codes.view(len(self), -1, BLOCK // 2)
            codes = torch.cat([halves & 15, halves >> 4], -1)
        else:
            codes = self.codes.view(len(self), -1, BLOCK)
        return torch.addcmul(self.scales[..., 1:], codes.float(), self.scales[..., :1]).view(len(self), -1)

    def lines(self, wanted: Tensor) -> Tensor:
        """Some lines of the float32 matrix."""
        return Packed(self.codes[wanted], self.scales[wanted]).unpacked()


class PackedFile:
    """The packed matrices of a converted directory, read by name."""

    def __init__(self, directory: Path) -> None:
        try:
            self._file: Any = safe_open(directory / PACKED_FILE, framework="np")
            self._kinds: dict[str, str] = json.loads(self._file.metadata()["kinds"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{directory / PACKED_FILE} cannot be read ({error}); convert the model again.") from error

    def matrix(self, names: tuple[str, ...]) -> Packed | None:
        """One matrix, or several stacked; None unless all of them are packed the same way."""
        kinds = {self._kinds.get(name) for name in names}
        if len(kinds) > 1 or None in kinds:
            return None
        unpack = UNPACK[kinds.pop() or ""]
        parts = [unpack(self._file.get_tensor(name)) for name in names]
        codes, scales = (np.concatenate(side) for side in zip(*parts, strict=True))
        return Packed(torch.from_numpy(codes), torch.from_numpy(scales))


def _halves(block: np.ndarray, place: int) -> np.ndarray:
    """The float16 at a byte offset of every block, as float32."""
    return np.ascontiguousarray(block[..., place : place + 2]).view(np.float16).astype(np.float32)


def _q4_1(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    block = raw.reshape(len(raw), -1, 20)
    scales = np.concatenate([_halves(block, 0), _halves(block, 2)], -1)
    return np.ascontiguousarray(block[..., 4:]).reshape(len(raw), -1), scales


def _q4_0(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    block = raw.reshape(len(raw), -1, 18)
    scale = _halves(block, 0)
    return np.ascontiguousarray(block[..., 2:]).reshape(len(raw), -1), np.concatenate([scale, -8 * scale], -1)


def _q8_0(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    block = raw.reshape(len(raw), -1, 34)
    scale = _halves(block, 0)
    codes = np.ascontiguousarray(block[..., 2:]).view(np.int8).reshape(len(raw), -1)
    return codes, np.concatenate([scale, np.zeros_like(scale)], -1)


UNPACK = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0}
