"""A plain checkpoint's matrices rounded to 8 or 4 bits when they are loaded, for a CPU: the form that GGUF files have.

Each 32 weights of a line have a scale of their own. `int8` has the code round(w / scale) with scale = max|w| / 127;
`int4` the code round((w - least) / scale) with scale = (most - least) / 15, and `least` as its shift. Scales lose their
last bits first, so that scale * code is exact and a weight means the same however it is unpacked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from augury.kernels.unpack import BLOCK, Packed
from augury.model.errors import ModelError

KINDS = ("int8", "int4")
LAST = {"int8": 0xFF, "int4": 0xF}  # bits of a scale's 24 that are cleared to make room for those of a code


def rounded(weight: Tensor, kind: str, name: str) -> Packed:
    """Round a float32 matrix to `kind`; `name` is what errors call it."""
    if weight.shape[1] % BLOCK:
        raise ModelError(
            f"quantization={kind!r} rounds {BLOCK} weights of a line together, and {name} has {weight.shape[1]} in a "
            "line; leave it out."
        )
    blocks = weight.view(len(weight), -1, BLOCK)
    packed = _in_bytes(blocks) if kind == "int8" else _in_halves(blocks)
    if not bool(torch.isfinite(packed.scales).all()):
        raise ModelError(f"quantization={kind!r}: {name} holds numbers that are not finite; leave it out.")
    return packed


def _in_bytes(blocks: Tensor) -> Packed:
    scales = _short(blocks.abs().amax(-1) / 127, LAST["int8"])
    codes = (blocks / _divisor(scales)).round().clamp(-127, 127).to(torch.int8)
    return Packed(codes.flatten(1), torch.stack([scales, scales, torch.zeros_like(scales)], -1))


def _in_halves(blocks: Tensor) -> Packed:
    least = blocks.amin(-1)
    scales = _short((blocks.amax(-1) - least) / 15, LAST["int4"])
    codes = ((blocks - least[..., None]) / _divisor(scales)).round().clamp(0, 15).to(torch.uint8)
    pairs = codes[..., : BLOCK // 2] | codes[..., BLOCK // 2 :] << 4
    return Packed(pairs.flatten(1), torch.stack([scales, least], -1))


def _short(scales: Tensor, last: int) -> Tensor:
    return scales.contiguous().view(torch.int32).bitwise_and(~last).view(torch.float32)


def _divisor(scales: Tensor) -> Tensor:
    """Scales to divide by: 1 in place of 0, whose block holds one value only, so that any divisor will do."""
    return torch.where(scales > 0, scales, 1)[..., None]
