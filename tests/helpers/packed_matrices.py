"""Random matrices in a GGUF file's precision, and their float32 twins."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from augury.model.packed import UNPACK, Packed


def packed_matrix(kind: str, lines: int, width: int) -> tuple[Packed, torch.Tensor]:
    """The same numbers every time."""
    values = np.random.default_rng(5).standard_normal((lines, width)).astype(np.float32)
    raw = quantize(values, Kind[kind])
    codes, scales = UNPACK[kind](raw)
    return Packed(torch.from_numpy(codes), torch.from_numpy(scales)), torch.from_numpy(dequantize(raw, Kind[kind]))
