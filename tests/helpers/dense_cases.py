"""Small models of every family that the dense decoder claims, with their rotary scalings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 12,
    "factor": 4.0,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
}
WIDE: dict[str, Any] = {**SIZES, "max_position_embeddings": 128}  # long enough for the engine's prompts
MIXTURES: dict[str, Any] = {
    "qwen3-moe": Qwen3MoeConfig(  # type: ignore[call-arg]  # a configuration takes any keyword
        **WIDE, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, head_dim=16, decoder_sparse_step=2
    ),
    "qwen3-moe-normed": Qwen3MoeConfig(  # type: ignore[call-arg]
        **WIDE,
        moe_intermediate_size=48,
        num_experts=8,
        num_experts_per_tok=3,
        head_dim=32,
        norm_topk_prob=True,
        mlp_only_layers=[1],
        use_sliding_window=True,
        sliding_window=6,
    ),
    "mixtral": MixtralConfig(**WIDE, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    "mixtral-window": MixtralConfig(**WIDE, num_local_experts=3, num_experts_per_tok=2, sliding_window=6, head_dim=32),
}
FAMILIES: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "llama-biased-tied": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama-odd-sizes": LlamaConfig(
        **{**SIZES, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6, "num_key_value_heads": 3},
        head_dim=24,
    ),
    "mistral": MistralConfig(**SIZES, sliding_window=6),
    "mistral-no-window": MistralConfig(**SIZES, sliding_window=None, head_dim=32),
    "qwen2": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen2-plain": Qwen2Config(**SIZES, sliding_window=5),
    "qwen3": Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True),
    "llama-partial": LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    ),
    "linear": LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
    "yarn": LlamaConfig(**SIZES, rope_parameters=YARN),
    "proportional": LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "proportional", "rope_theta": 1e4, "factor": 2.0}
    ),
    **MIXTURES,
}


def save_random(config: Any, directory: Path) -> Any:
    """A random model of that configuration, saved; every parameter differs from its default."""
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            assert parameter.isfinite().all(), name
    model.save_pretrained(directory)
    return model
