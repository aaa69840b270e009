"""Matrices in the precision of their file: 4- or 8-bit codes, with scales and a shift for every 32 of them.

A weight is scale * code + shift. The product is exact in float32 (a scale has at most 18 bits, a code of such a kind 6)
and the sum is rounded once: unpacking gives, to the bit, the float32 weight that conversion wrote. A packed model
computes what the float32 model computes, and reads a fifth of the memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from augury.kernels.unpack import Packed
from augury.model.errors import ModelError
from augury.model.gguf_blocks import UNPACK, widened

PACKED_FILE = "packed.safetensors"


class PackedFile:
    """The packed matrices of a converted directory, read by name."""

    def __init__(self, directory: Path) -> None:
        try:
            self._file: Any = safe_open(directory / PACKED_FILE, framework="np")
            self._kinds: dict[str, str] = json.loads(self._file.metadata()["kinds"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{directory / PACKED_FILE} cannot be read ({error}); convert the model again.") from error

    def matrix(self, names: tuple[str, ...]) -> Packed | None:
        """One matrix, or several stacked; None unless all of them are packed."""
        if not all(name in self._kinds for name in names):
            return None
        parts = [UNPACK[self._kinds[name]](self._file.get_tensor(name)) for name in names]
        if len({codes.dtype for codes, _ in parts}) > 1:  # Q4_K_M has six bits for values, four for keys and queries
            parts = [widened(*part) for part in parts]
        codes, scales = parts[0] if len(parts) == 1 else (np.concatenate(side) for side in zip(*parts, strict=True))
        return Packed(torch.from_numpy(codes), torch.from_numpy(scales))
