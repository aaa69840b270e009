"""A head's large matrices in bytes, on a CPU, where reading its weights is most of what a guess costs.

Guesses may be a little worse for it and text is the same: the target checks every one of them. Files stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from augury.kernels import machine
from augury.kernels.unpack import BLOCK
from augury.model.layers import AnyLinear, GatedMLP, Layer, Linear, PackedLinear
from augury.model.packed import Packed

LARGE = 1 << 17  # weights; smaller matrices stay in the processor's caches
MOST = 127  # of a code


def lighter(linear: AnyLinear) -> AnyLinear:
    """The same projection, in bytes where that pays."""
    if not isinstance(linear, Linear):
        return linear
    weight = linear.weight
    if (
        weight.device.type != "cpu"
        or weight.dtype != torch.float32
        or weight.numel() < LARGE
        or weight.shape[1] % BLOCK
    ):
        return linear
    packed = linear.ops.arrange(in_bytes(weight), fast=machine.DOT_PRODUCTS)
    return PackedLinear(linear.ops, packed, linear.bias)


def lighter_layer(layer: Layer) -> Layer:
    """A layer with all its projections so."""
    attention, mlp = layer.attention, layer.mlp
    assert isinstance(mlp, GatedMLP)  # no head has experts
    return replace(
        layer,
        attention=replace(attention, qkv=lighter(attention.qkv), out=lighter(attention.out)),
        mlp=replace(mlp, gate_up=lighter(mlp.gate_up), down=lighter(mlp.down)),
    )


def in_bytes(weight: Tensor) -> Packed:
    """A float32 matrix rounded to a byte a weight, with a scale for every 32."""
    blocks = weight.view(len(weight), -1, BLOCK)
    scales = blocks.abs().amax(-1) / MOST
    codes = torch.where(scales > 0, 1 / scales, 0)[..., None].mul(blocks).round().to(torch.int8)
    return Packed(codes.view(weight.shape), torch.stack([scales, scales, torch.zeros_like(scales)], -1).contiguous())
