"""EAGLE, EAGLE-3 and MTP heads straight from their formulas, in plain torch over whole sequences.

State dictionaries carry the published names, so that a trained one is exported by saving it. Independent of the engine:
no cache, no packed rows, no fused matrices.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of [T, heads, dim], halves apart as Llama has them."""
    half = x.shape[-1] // 2
    angle = positions[:, None].float() / theta ** (torch.arange(half) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class SelfAttention(nn.Module):
    def __init__(self, config: Any, width: int, normed: bool = False) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.theta, self.eps = config.rope_parameters["rope_theta"], config.rms_norm_eps
        self.q_proj = nn.Linear(width, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(self.dim, eps=self.eps) if normed else None
        self.k_norm = nn.RMSNorm(self.dim, eps=self.eps) if normed else None

    def forward(self, x: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        q = self.q_proj(x).view(len(x), self.heads, self.dim)
        k = self.k_proj(x).view(len(x), self.kv_heads, self.dim)
        v = self.v_proj(x).view(len(x), self.kv_heads, self.dim).repeat_interleave(self.heads // self.kv_heads, 1)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, positions, self.theta), rotate(k, positions, self.theta)
        k = k.repeat_interleave(self.heads // self.kv_heads, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / self.dim**0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return self.o_proj(torch.einsum("hqk,khd->qhd", weights, v).flatten(1))


class MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """A layer whose first norm may be missing, and whose attention may read a wider input."""

    def __init__(
        self, config: Any, width: int, input_norm: bool, hidden_norm: bool = False, normed: bool = False
    ) -> None:
        super().__init__()
        self.self_attn, self.mlp = SelfAttention(config, width, normed), MLP(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if input_norm:
            self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if hidden_norm:
            self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def after(self, attended: Tensor, residual: Tensor) -> Tensor:
        x = residual + attended
        return x + self.mlp(self.post_attention_layernorm(x))


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


class Eagle(nn.Module):
    """EAGLE-1: pairs (token t+1, normed feature t) at position t."""

    def __init__(self, config: Any, bias: bool = False) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layers = nn.ModuleList(
            DecoderLayer(config, config.hidden_size, input_norm=i > 0) for i in range(config.num_hidden_layers)
        )

    def forward(
        self, embedded: Tensor, features: Tensor, seen: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Hidden states [T, H]; the target's own head reads them."""
        positions = torch.arange(len(embedded)) if positions is None else positions
        seen = causal(len(embedded)) if seen is None else seen
        x = self.fc(torch.cat([embedded, features], dim=1))
        for i, layer in enumerate(self.layers):
            normed = layer.input_layernorm(x) if i else x
            x = layer.after(layer.self_attn(normed, positions, seen), x)
        return x


class Eagle3(nn.Module):
    """EAGLE-3 and 3.1; `midlayer` is the first layer."""

    def __init__(
        self, config: Any, streams: int, draft_vocab: int, target_vocab: int, *, norm_before_residual: bool = False,
        norm_before_fc: bool = False, fc_norm: bool = False, norm_output: bool = False, mask_hidden: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.before, self.normed_output = norm_before_residual, norm_output
        self.fc = nn.Linear(streams * size, size, bias=False)
        self.midlayer = DecoderLayer(config, 2 * size, input_norm=True, hidden_norm=True)
        self.layers = nn.ModuleList(
            [nn.Identity()] + [DecoderLayer(config, size, True) for _ in range(config.num_hidden_layers - 1)]
        )
        self.norm = nn.RMSNorm(size, eps=eps)
        self.lm_head = nn.Linear(size, draft_vocab, bias=False)
        self.input_norm = nn.RMSNorm(streams * size, eps=eps) if norm_before_fc else None
        self.fc_norm = nn.ModuleList(nn.RMSNorm(size, eps=eps) for _ in range(streams)) if fc_norm else None
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, streams * size) * 0.1) if mask_hidden else None
        chosen = torch.randperm(target_vocab)[:draft_vocab].sort().values
        self.register_buffer("d2t", chosen - torch.arange(draft_vocab))
        self.register_buffer("t2d", torch.zeros(target_vocab, dtype=torch.bool).index_fill(0, chosen, True))

    def combine(self, streams: Tensor) -> Tensor:
        if self.input_norm is not None:
            streams = self.input_norm(streams)
        if self.fc_norm is not None:
            parts = streams.chunk(len(self.fc_norm), dim=1)
            streams = torch.cat([norm(x) for norm, x in zip(self.fc_norm, parts, strict=True)], dim=1)
        return self.fc(streams)

    def forward(
        self, embedded: Tensor, hidden: Tensor, seen: Tensor | None = None, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits over the head's vocabulary and what is handed on."""
        positions = torch.arange(len(embedded)) if positions is None else positions
        seen = causal(len(embedded)) if seen is None else seen
        layer = self.midlayer
        normed = layer.hidden_norm(hidden)
        x = torch.cat([layer.input_layernorm(embedded), normed], dim=1)
        x = layer.after(layer.self_attn(x, positions, seen), normed if self.before else hidden)
        for later in list(self.layers)[1:]:
            x = later.after(later.self_attn(later.input_layernorm(x), positions, seen), x)
        final = self.norm(x)
        return self.lm_head(final), final if self.normed_output else x
