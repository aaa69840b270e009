"""Decoder layers of heads, like a target's but with a KV cache of their own."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from augury.kernels import Ops
from augury.kernels.rows import Rows
from augury.model.heads.files import Weights
from augury.model.heads.lighter import lighter_layer
from augury.model.layers import Attention, GatedMLP, Layer
from augury.model.rope import head_dim, rotary_tables
from augury.model.split import Heads, split_layer
from augury.model.target import KVCache, LayerShape, Target

MANY_ROWS = 128  # fewer wait for the layer's weights, however little is done with each


class RecurrentHead(Protocol):
    """A head that guesses a token from the previous token and a hidden state, and returns its own hidden state."""

    features: tuple[int, ...]  # ids of the target's streams that it reads
    targets: Tensor | None  # int64 [V]: the target's id of each token it guesses from; None: they are the same
    feature_size: int  # width of those streams side by side
    layer_shapes: list[LayerShape]
    cache: KVCache
    cache_dtype: torch.dtype

    def combine(self, streams: Tensor) -> Tensor:
        """The target's streams side by side [R, feature_size] as the hidden state [R, H] that `forward` takes."""
        ...

    def forward(self, rows: Rows, hidden: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Logits [W, V] over its own vocabulary and the hidden states [W, H] to continue with, of the wanted rows.

        `step` is 0 for rows whose hidden state came from the target, and counts the guesses after that.
        """
        ...


def layer_shapes(config: Any, layers: int) -> list[LayerShape]:
    """The cache shapes of a head's layers."""
    dim = head_dim(config)
    return [LayerShape(config.num_key_value_heads, dim, dim)] * layers


def make_rotary(config: Any, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rotary tables of the head's own configuration, for positions up to `length`."""
    cos, sin = rotary_tables(config, length)
    return cos.to(device), sin.to(device)


def read_layer(
    weights: Weights,
    prefix: str,
    config: Any,
    rotary: tuple[Tensor, Tensor],
    width: int = 0,
    norm: str | None = None,
    shift: float = 0.0,
) -> Layer:
    """One layer; `width` is that of the attention's input, `norm` the name of the norm before it, if it has one."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, head_dim(config)
    q, kv = config.num_attention_heads * dim, config.num_key_value_heads * dim
    at = f"{prefix}.self_attn"
    names = [f"{at}.{x}_proj" for x in "qkv"]
    normed = f"{at}.q_norm.weight" in weights
    attention = Attention(
        weights.ops,
        qkv=weights.fused(names, [q, kv, kv], width or hidden),
        out=weights.linear(f"{at}.o_proj", hidden, q),
        q_norm=weights.vector(f"{at}.q_norm.weight", dim, shift) if normed else None,
        k_norm=weights.vector(f"{at}.k_norm.weight", dim, shift) if normed else None,
        rotary=rotary,
        scale=dim**-0.5,
        window=0,
        eps=config.rms_norm_eps,
    )
    mlp = f"{prefix}.mlp"
    return Layer(
        attention_norm=weights.vector(f"{prefix}.{norm}.weight", hidden, shift) if norm else torch.empty(0),
        attention=attention,
        mlp_norm=weights.vector(f"{prefix}.post_attention_layernorm.weight", hidden, shift),
        mlp=GatedMLP(
            weights.ops,
            weights.fused([f"{mlp}.gate_proj", f"{mlp}.up_proj"], [inner, inner], hidden),
            weights.linear(f"{mlp}.down_proj", hidden, inner),
        ),
    )


class BlockLayers:
    """Our own layers as a Stack, with a cache of their own."""

    def __init__(self, weights: Weights, config: Any, layers: list[Layer]) -> None:
        self.ops, self.eps = weights.ops, config.rms_norm_eps
        self.layers = layers
        self.shapes = layer_shapes(config, len(layers))
        self.cache = KVCache()
        self.run_layers = self.ops.fused(layers)
        self._heads = Heads(config.num_attention_heads, config.num_key_value_heads, head_dim(config))

    def settle(self, target: Target) -> None:
        """See Stack.settle."""
        split = target.draft_split
        if split is None:
            self.layers = [lighter_layer(layer, target.layers) for layer in self.layers]
        else:
            self._heads.check(split.ranks.size, split.field)
            self.layers = [split_layer(layer, self._heads, split) for layer in self.layers]
            self.shapes = [self._heads.shape(split)] * len(self.layers)
        self.run_layers = self.ops.fused(self.layers)
        self._reader = self.layers[0].attention.without_queries(self.shapes[0])

    def run(self, rows: Rows, first_input: Tensor | None, residual: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """See Stack.run."""
        view, x = self.ops.view(rows), first_input
        if x is None:
            x = self.ops.rms_norm(residual, self.layers[0].attention_norm, self.eps)
        return self.run_layers(x, residual, view, (self.cache.keys, self.cache.values), self.norms(norm))[:2]

    def run_wanted(
        self, rows: Rows, first_input: Tensor | None, residual: Tensor, norm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See Stack.run_wanted."""
        wanted, pick = rows.wanted, self.ops.pick
        if len(self.layers) > 1 or len(rows.tokens) < MANY_ROWS or 2 * len(wanted) > len(rows.tokens):
            final, out = self.run(rows, first_input, residual, norm)
            return pick(final, wanted), pick(out, wanted)
        x = first_input
        if x is None:
            x = self.ops.rms_norm(residual, self.layers[0].attention_norm, self.eps)
        self._reader.read(x, self.ops.view(rows), self.cache.keys[0], self.cache.values[0])
        residual = pick(residual, wanted)
        if not len(wanted):
            return residual, residual
        return self.run(rows.only(wanted), pick(x, wanted), residual, norm)

    def norms(self, last: Tensor) -> list[Tensor]:
        """The norm after each layer, of which the last is the head's."""
        return [*(layer.attention_norm for layer in self.layers[1:]), last]


class Stack(Protocol):
    """Layers over a residual stream, ours or transformers', with a cache of their own."""

    ops: Ops
    eps: float
    shapes: list[LayerShape]
    cache: KVCache

    def run(self, rows: Rows, first_input: Tensor | None, residual: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream after the layers, normed and as it is; `first_input` replaces the first normed input."""
        ...

    def run_wanted(
        self, rows: Rows, first_input: Tensor | None, residual: Tensor, norm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What `run` returns for the wanted rows; of a single layer's other rows only keys and values are needed."""
        ...

    def settle(self, target: Target) -> None:
        """Keep this rank's part of the layers; if they are not divided, convert large matrices to fewer bits."""
        ...


class BlockHead:
    """What recurrent heads share: a target to borrow from, and layers with a cache."""

    targets: Tensor | None = None

    def __init__(self, target: Target, blocks: Stack, streams: int = 1) -> None:
        self.target, self.blocks = target, blocks
        blocks.settle(target)
        self.feature_size = streams * target.hidden_size
        self.layer_shapes, self.cache_dtype = blocks.shapes, target.cache_dtype

    @property
    def cache(self) -> KVCache:
        """Its keys and values."""
        return self.blocks.cache

    @cache.setter
    def cache(self, cache: KVCache) -> None:
        self.blocks.cache = cache

    def combine(self, streams: Tensor) -> Tensor:
        """A single stream is the hidden state itself."""
        return streams
