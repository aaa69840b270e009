"""Random matrices in a GGUF file's precision, and their float32 twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from augury.kernels.unpack import Packed
from augury.model.gguf_blocks import UNPACK


def _quantised(values: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """A matrix of the kind; the gguf package cannot write the K kinds, so theirs are random bytes with sane scales."""
    if not kind.endswith("_K"):
        return quantize(values, Kind[kind])
    weights, size = GGML_QUANT_SIZES[Kind[kind]]
    blocks = values.shape[1] // weights
    raw = np.random.default_rng(6).integers(0, 256, (len(values), blocks, size)).astype(np.uint8)
    factors = np.random.default_rng(7).uniform(0.001, 0.01, (len(values), blocks, 2)).astype(np.float16)
    place = slice(size - 2, size) if kind == "Q6_K" else slice(0, 4)
    raw[..., place] = factors.view(np.uint8)[..., : place.stop - place.start]
    return raw.reshape(len(values), -1)


def raw_matrix(kind: str, lines: int, width: int) -> tuple[np.ndarray[Any, Any], torch.Tensor]:
    """The bytes of a matrix, the same every time, and what they mean."""
    raw = _quantised(np.random.default_rng(5).standard_normal((lines, width)).astype(np.float32), kind)
    return raw, torch.from_numpy(dequantize(raw, Kind[kind]))


def packed_matrix(kind: str, lines: int, width: int) -> tuple[Packed, torch.Tensor]:
    """A matrix and its twin; K kinds come in whole blocks of 256, so their width is at least that."""
    raw, twin = raw_matrix(kind, lines, -(-width // 256) * 256 if kind.endswith("_K") else width)
    codes, scales = UNPACK[kind](raw)
    return Packed(torch.from_numpy(codes), torch.from_numpy(scales)), twin
