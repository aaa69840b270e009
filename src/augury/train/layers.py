"""The parts that trainable heads are made of, by checkpoints' names; they run whole sequences, without a cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KeysValues = tuple[Tensor, Tensor]  # each [R, kv_heads, dim]


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Sizes of a head's layers."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    dim: int
    theta: float
    eps: float

    @classmethod
    def like(cls, config: Any) -> LayerSizes:
        """Layers like the target's, with a narrower MLP: a gate does not need the capacity."""
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            config.hidden_size,
            min(config.intermediate_size, 2 * config.hidden_size),
            config.num_attention_heads,
            config.num_key_value_heads,
            dim,
            float(config.rope_parameters["rope_theta"]),
            config.rms_norm_eps,
        )

    @classmethod
    def of_target(cls, config: Any) -> LayerSizes:
        """Layers just like the target's."""
        return replace(cls.like(config), inner=config.intermediate_size)

    def config(self, vocabulary: int, context: int, layers: int = 1) -> dict[str, Any]:
        """Their part of a config.json."""
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.dim,
            "num_hidden_layers": layers,
            "rms_norm_eps": self.eps,
            "rope_theta": self.theta,
            "vocab_size": vocabulary,
            "max_position_embeddings": context,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
        }


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of [R, heads, dim], with rotary pairs in halves as in Llama."""
    half = x.shape[-1] // 2
    angle = positions[:, None].float() / theta ** (torch.arange(half, device=x.device) / half)
    cos, sin = angle.cos()[:, None].to(x.dtype), angle.sin()[:, None].to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(nn.Module):
    """Attention of queries to rows that all of them may share, and to a few rows of each query's own."""

    def __init__(self, shape: LayerSizes, width: int, normed: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(width, shape.heads * shape.dim, bias=False)
        self.k_proj = nn.Linear(width, shape.kv_heads * shape.dim, bias=False)
        self.v_proj = nn.Linear(width, shape.kv_heads * shape.dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.dim, shape.hidden, bias=False)
        if normed:
            self.q_norm, self.k_norm = nn.RMSNorm(shape.dim, eps=shape.eps), nn.RMSNorm(shape.dim, eps=shape.eps)
        self.normed = normed

    def keys_values(self, x: Tensor, positions: Tensor) -> KeysValues:
        """The keys and values of rows."""
        s = self.shape
        k = self.k_proj(x).view(len(x), s.kv_heads, s.dim)
        k = self.k_norm(k) if self.normed else k
        return rotate(k, positions, s.theta), self.v_proj(x).view(len(x), s.kv_heads, s.dim)

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """The queries of rows, [R, heads, dim], scaled."""
        s = self.shape
        q, scale = self.q_proj(x).view(len(x), s.heads, s.dim), float(s.dim**0.5)
        return rotate(self.q_norm(q) if self.normed else q, positions, s.theta) / scale

    def forward(self, x: Tensor, positions: Tensor, shared: KeysValues, seen: Tensor, own: list[KeysValues]) -> Tensor:
        """[Q, H]: row i sees the shared rows that seen[i] names, and row i of every `own`."""
        s, groups = self.shape, self.shape.heads // self.shape.kv_heads
        q = self.queries(x, positions).view(len(x), s.kv_heads, groups, s.dim)
        scores = torch.einsum("qngd,knd->qngk", q, shared[0])
        scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
        extra = [torch.einsum("qngd,qnd->qng", q, keys)[..., None] for keys, _ in own]
        weights = torch.cat([scores, *extra], dim=-1).softmax(-1)
        out = torch.einsum("qngk,knd->qngd", weights[..., : len(shared[0])], shared[1])
        for i, (_, values) in enumerate(own):
            out = out + weights[..., len(shared[0]) + i, None] * values[:, :, None]
        projected: Tensor = self.o_proj(out.flatten(1))
        return projected


class GatedMLP(nn.Module):
    """down(silu(gate x) * up x)."""

    def __init__(self, shape: LayerSizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rows in, rows out."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """Attention and MLP around a residual; what comes before the attention is up to each head."""

    def __init__(
        self,
        shape: LayerSizes,
        width: int | None = None,
        input_norm: bool = True,
        hidden_norm: bool = False,
        normed: bool = False,
    ) -> None:
        super().__init__()
        self.self_attn = Attention(shape, width or shape.hidden, normed)
        self.mlp = GatedMLP(shape)
        if input_norm:
            self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        if hidden_norm:
            self.hidden_norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)

    def after(self, attended: Tensor, residual: Tensor) -> Tensor:
        """The residual stream after the layer."""
        x = residual + attended
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
