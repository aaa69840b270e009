"""DFlash straight from its formula, in plain torch: context and blocks as one big attention with a mask.

The state dictionary carries the published names, so that a trained one is exported by saving it. Independent of the
engine: no cache, no packed rows, no fused matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MASK, VOCAB, BLOCK = 259, 260, 4
IDS = [0, 1]  # layers whose output is read: streams 1 and 2


@dataclass(frozen=True)
class Shape:
    """Sizes and habits of a drafter."""

    hidden: int = 64
    inner: int = 96
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    layers: int = 2
    streams: int = 2
    stream_size: int = 64
    theta: float = 1e6
    eps: float = 1e-6
    bias: bool = False
    causal: tuple[bool, ...] = (False, False)
    windows: tuple[int, ...] = (0, 0)
    interleaved: bool = False
    sinks: bool = False
    value_scale: float = 1.0


@dataclass
class Blocks:
    """Queries [Q]: which block each belongs to, where the block begins, and each one's position."""

    block: Tensor
    anchor: Tensor
    positions: Tensor

    @classmethod
    def at(cls, anchors: list[int], size: int) -> Blocks:
        anchor = torch.tensor(anchors).repeat_interleave(size)
        inside = torch.arange(size).repeat(len(anchors))
        return cls(torch.arange(len(anchors)).repeat_interleave(size), anchor, anchor + inside)


def rotate(x: Tensor, positions: Tensor, theta: float, interleaved: bool) -> Tensor:
    """Rotary embedding of [T, heads, dim]: pairs are halves apart, or neighbours."""
    half = x.shape[-1] // 2
    angle = positions[:, None].float() / theta ** (torch.arange(half) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        s = self.shape = shape
        self.q_proj = nn.Linear(s.hidden, s.heads * s.dim, bias=s.bias)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.dim, bias=s.bias)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.dim, bias=s.bias)
        self.o_proj = nn.Linear(s.heads * s.dim, s.hidden, bias=s.bias)
        self.q_norm, self.k_norm = nn.RMSNorm(s.dim, eps=s.eps), nn.RMSNorm(s.dim, eps=s.eps)
        if s.sinks:
            self.attention_sink_bias = nn.Parameter(torch.randn(s.heads))

    def keys_and_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        s = self.shape
        k = rotate(self.k_norm(self.k_proj(x).view(len(x), s.kv_heads, s.dim)), positions, s.theta, s.interleaved)
        return k, self.v_proj(x).view(len(x), s.kv_heads, s.dim) * s.value_scale

    def forward(self, x: Tensor, context: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        s = self.shape
        q = rotate(self.q_norm(self.q_proj(x).view(len(x), s.heads, s.dim)), positions, s.theta, s.interleaved)
        pairs = zip(self.keys_and_values(context, torch.arange(len(context))), self.keys_and_values(x, positions),
                    strict=True)  # fmt: skip
        k, v = (torch.cat(pair).repeat_interleave(s.heads // s.kv_heads, 1) for pair in pairs)
        scores = torch.einsum("qhd,khd->hqk", q, k) / s.dim**0.5
        scores = scores.masked_fill(~seen, float("-inf"))
        if s.sinks:
            sink = self.attention_sink_bias[:, None, None].expand(-1, len(x), 1)
            weights = torch.cat([scores, sink], dim=2).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        return self.o_proj(torch.einsum("hqk,khd->qhd", weights, v).flatten(1))


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.mlp = MLP(shape)


class DFlashFormula(nn.Module):
    """Hidden states of blocks, each over the streams of the tokens before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(shape.streams * shape.stream_size, shape.hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)

    def context(self, streams: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(streams))

    def forward(self, streams: Tensor, embedded: Tensor, blocks: Blocks) -> Tensor:
        """[Q, H] from streams [T, n * H] and the embeddings of the blocks' tokens [Q, H]."""
        context, x = self.context(streams), embedded
        for i, layer in enumerate(self.layers):
            seen = self.seen(len(context), blocks, self.shape.causal[i], self.shape.windows[i])
            x = x + layer.self_attn(layer.input_layernorm(x), context, blocks.positions, seen)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)

    @staticmethod
    def seen(length: int, blocks: Blocks, causal: bool, window: int) -> Tensor:
        """[Q, T + Q]: the context before the block, and the block itself."""
        before = torch.arange(length) < blocks.anchor[:, None]
        inside = blocks.block[:, None] == blocks.block
        gap = blocks.positions[:, None] - torch.cat([torch.arange(length), blocks.positions])
        seen = torch.cat([before, inside], dim=1)
        if causal:
            seen &= gap >= 0
        return seen & (gap.abs() < window) if window else seen


def shaken(module: nn.Module, seed: int = 0) -> nn.Module:
    """Every weight random, norms around one: nothing may hide behind an initial value."""
    torch.manual_seed(seed)
    for name, parameter in module.named_parameters():
        parameter.data = torch.randn_like(parameter) * 0.2 + (1.0 if "norm" in name else 0.0)
    return module


def published_config(shape: Shape, mask: int, ids: list[int], vocab: int = 260, **more: object) -> dict[str, object]:
    """config.json as z-lab writes it; `ids` name layers whose output is read."""
    inner: dict[str, object] = {"mask_token_id": mask, "target_layer_ids": ids, **more.pop("dflash_config", {})}  # type: ignore[dict-item]
    return {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3",
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "hidden_size": shape.hidden, "intermediate_size": shape.inner, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.dim, "num_hidden_layers": shape.layers,
        "rms_norm_eps": shape.eps, "rope_theta": shape.theta, "vocab_size": vocab, "max_position_embeddings": 512,
        "attention_bias": shape.bias, "block_size": 8, "num_target_layers": 2, "dflash_config": inner, **more,
    }  # fmt: skip
