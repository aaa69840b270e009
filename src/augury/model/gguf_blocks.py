"""The blocks of GGUF's quantised matrices, as codes, scales and shifts.

Kinds of 4 bits keep two codes in a byte. Those of 5 and 6 bits get a byte for each code, which the kernels read at the
speed of 8 bits: larger than in the file, a quarter of float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Unpacked = tuple[Array, Array]  # codes and scales, as Packed has them

BLOCK = 32


def _half(block: Array, place: int) -> Array:
    """The float16 at a byte offset of every block, as float32 [..., 1]."""
    return np.ascontiguousarray(block[..., place : place + 2]).view(np.float16).astype(np.float32)


def _blocks(raw: Array, size: int) -> Array:
    return raw.reshape(len(raw), -1, size)


def _bits(packed: Array, width: int, *shifts: int) -> Array:
    """Fields of `width` bits at some places of every byte: a new axis before the last."""
    places = np.array(shifts, np.uint8)[:, None]
    return (packed[..., None, :] >> places) & np.uint8((1 << width) - 1)


def _whole(codes: Array, low: Array, high: Array, shift: Array) -> Unpacked:
    """Codes of a byte each, with a scale for each half of a block."""
    lines = len(codes)
    scales = np.concatenate([part.reshape(lines, -1, 1) for part in (low, high, shift)], -1)
    return np.ascontiguousarray(codes.reshape(lines, -1)).view(np.int8), scales


def widened(codes: Array, scales: Array) -> Unpacked:
    """The same weights with a byte for each code."""
    if codes.dtype == np.int8:
        return codes, scales
    whole = _bits(codes.reshape(len(codes), -1, BLOCK // 2), 4, 0, 4)
    return _whole(whole, scales[..., 0], scales[..., 0], scales[..., 1])


def _q4_0(raw: Array) -> Unpacked:
    block = _blocks(raw, 18)
    scale = _half(block, 0)
    return np.ascontiguousarray(block[..., 2:]).reshape(len(raw), -1), np.concatenate([scale, -8 * scale], -1)


def _q4_1(raw: Array) -> Unpacked:
    words = np.ascontiguousarray(raw).view(np.uint32).reshape(len(raw), -1, 5)  # both factors, and sixteen codes
    codes, factors = np.ascontiguousarray(words[..., 1:]), np.ascontiguousarray(words[..., :1])
    return codes.reshape(len(raw), -1).view(np.uint8), factors.view(np.float16).astype(np.float32)


def _q4_k(raw: Array) -> Unpacked:
    block = _blocks(raw, 144)
    scale, shift = _k_scales(block)
    codes = _bits(block[..., 16:].reshape(len(raw), -1, 4, BLOCK), 4, 0, 4).reshape(len(raw), -1, BLOCK)
    pairs = codes[..., : BLOCK // 2] | codes[..., BLOCK // 2 :] << np.uint8(4)
    return pairs.reshape(len(raw), -1), np.stack([scale, shift], -1).reshape(len(raw), -1, 2)


def _k_scales(block: Array) -> tuple[Array, Array]:
    """Scales and shifts of the eight blocks in one of Q4_K or Q5_K: 6 bits each in 12 bytes, times two float16."""
    first, second, third = (block[..., 4 + 4 * n : 8 + 4 * n] for n in range(3))
    scale = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], -1)
    shift = np.concatenate([second & 63, third >> 4 | (second >> 6) << 4], -1)
    return _half(block, 0) * scale.astype(np.float32), -(_half(block, 2) * shift.astype(np.float32))


def _q5_0(raw: Array) -> Unpacked:
    block = _blocks(raw, 22)
    scale = _half(block, 0)
    codes = _five_bits(block[..., 2:6], block[..., 6:]).astype(np.int8) - np.int8(16)
    return _whole(codes, scale, scale, np.zeros_like(scale))


def _q5_1(raw: Array) -> Unpacked:
    block = _blocks(raw, 24)
    scale = _half(block, 0)
    return _whole(_five_bits(block[..., 4:8], block[..., 8:]), scale, scale, _half(block, 2))


def _five_bits(high: Array, low: Array) -> Array:
    """Codes of 32 weights from their fifth bits, in order, and the others, in halves of bytes."""
    fifth = np.unpackbits(np.ascontiguousarray(high), axis=-1, bitorder="little")
    found: Array = _bits(low, 4, 0, 4).reshape(*low.shape[:-1], BLOCK) | fifth << 4
    return found


def _q5_k(raw: Array) -> Unpacked:
    block = _blocks(raw, 176)
    scale, shift = _k_scales(block)
    fifth = _bits(block[..., 16:48], 1, *range(8))
    low = _bits(block[..., 48:].reshape(len(raw), -1, 4, BLOCK), 4, 0, 4).reshape(fifth.shape)
    return _whole(low | fifth << 4, scale, scale, shift)


def _q6_k(raw: Array) -> Unpacked:
    block = _blocks(raw, 210)
    low = _bits(block[..., :128].reshape(len(raw), -1, 2, 64), 4, 0, 4)
    high = _bits(block[..., 128:192].reshape(len(raw), -1, 2, BLOCK), 2, 0, 2, 4, 6)
    codes = (low.reshape(len(raw), -1, BLOCK) | high.reshape(len(raw), -1, BLOCK) << 4).astype(np.int8) - np.int8(32)
    scale = _half(block, 208) * np.ascontiguousarray(block[..., 192:208]).view(np.int8).astype(np.float32)
    return _whole(codes, scale[..., ::2], scale[..., 1::2], np.zeros_like(scale[..., ::2]))


def _q8_0(raw: Array) -> Unpacked:
    block = _blocks(raw, 34)
    scale = _half(block, 0)
    return _whole(block[..., 2:].view(np.int8), scale, scale, np.zeros_like(scale))


UNPACK: dict[str, Callable[[Array], Unpacked]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_0": _q8_0,
}
