"""A head's large matrices in fewer bits, on a CPU, where reading its weights is most of what a guess costs.

Guesses may be a little worse for it, but the text is the same: the target verifies every one. Files are not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from augury.kernels import machine
from augury.kernels.tiles import Tiled
from augury.kernels.unpack import BLOCK
from augury.model.layers import AnyLinear, GatedMLP, Layer, Linear, PackedLinear
from augury.model.rounded import rounded

LARGE = 1 << 17  # weights; smaller matrices stay in the processor's caches


def lighter(linear: AnyLinear) -> AnyLinear:
    """The same projection, in int8 where that pays."""
    if not isinstance(linear, Linear) or not _pays(linear):
        return linear
    packed = linear.ops.arrange(rounded(linear.weight, "int8", "a head"), fast=machine.DOT_PRODUCTS)
    return PackedLinear(linear.ops, packed, linear.bias)


def _pays(linear: Linear) -> bool:
    weight = linear.weight
    usual = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.shape[1] % BLOCK == 0
    return usual and weight.numel() >= LARGE


def lighter_layer(layer: Layer, models: Sequence[Layer] = ()) -> Layer:
    """A layer with its projections in fewer bits; in its model's form, if one call of compiled code runs that.

    The same code then runs this layer, too, without being compiled once more.
    """
    attention, mlp = layer.attention, layer.mlp
    assert isinstance(mlp, GatedMLP)  # no head has experts
    linears, form = (attention.qkv, attention.out, mlp.gate_up, mlp.down), _form(models)
    if form is not None and all(isinstance(linear, Linear) and _pays(linear) for linear in linears):
        light: list[AnyLinear] = [_like(form, linear) for linear in linears if isinstance(linear, Linear)]
    else:
        light = [lighter(linear) for linear in linears]
    qkv, out, gate_up, down = light
    return replace(layer, attention=replace(attention, qkv=qkv, out=out), mlp=replace(mlp, gate_up=gate_up, down=down))


def _form(models: Sequence[Layer]) -> Tiled | None:
    """A matrix of a model whose layers are in tiles."""
    linear = models[0].attention.qkv if models else None
    weight = getattr(getattr(linear, "base", linear), "weight", None)  # an AdaptedLinear wraps another
    return weight if isinstance(weight, Tiled) else None


def _like(form: Tiled, linear: Linear) -> PackedLinear:
    packed = rounded(linear.weight, "int4" if form.tiles.dtype == np.uint8 else "int8", "a head")
    return PackedLinear(linear.ops, linear.ops.arrange(packed, fast=len(form.digits) == 1), linear.bias)
