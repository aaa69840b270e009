"""A Llama configuration read without transformers, whose import takes longer than loading the embedded model.

Only a config.json that states everything the layers depend on, in values that need no interpretation, is read here:
those of converted GGUF files, and what transformers itself writes today. Anything else is left to transformers, with
its defaults, its older spellings and its error messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class PlainConfig:
    """What the layers of a Llama depend on, by transformers' names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool = False
    hidden_act: str = "silu"
    model_type: str = "llama"
    quantization_config: None = None


def _count(value: Any) -> bool:
    return type(value) is int and value > 0


def _token(value: Any) -> bool:
    return value is None or (type(value) is int and value >= 0)


def _any_bool(value: Any) -> bool:
    return type(value) is bool


def _angles(value: Any) -> bool:
    plain = isinstance(value, dict) and value.keys() == {"rope_type", "rope_theta"} and value["rope_type"] == "default"
    return plain and type(value["rope_theta"]) in (int, float) and value["rope_theta"] > 0


def _are(*values: Any) -> Callable[[Any], bool]:
    return lambda value: any(type(value) is type(one) and value == one for one in values)


COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
NEEDED: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(COUNTS, _count),
    "model_type": _are("llama"),
    "hidden_act": _are("silu"),
    "rms_norm_eps": lambda value: type(value) is float and 0 < value < 1,
    "rope_parameters": _angles,
    "tie_word_embeddings": _any_bool,
    "attention_bias": _any_bool,
}
ALLOWED: dict[str, Callable[[Any], bool]] = {
    "mlp_bias": _any_bool,
    # Known not to affect our forward pass.
    "architectures": _are(["LlamaForCausalLM"]),
    "attention_dropout": _are(0.0),
    "bos_token_id": _token,
    "dtype": _are("float32", "bfloat16", "float16"),
    "eos_token_id": lambda value: all(map(_token, value)) if isinstance(value, list) else _token(value),
    "initializer_range": lambda value: type(value) is float and 0 <= value <= 1,
    "pad_token_id": _token,
    "pretraining_tp": _are(1),
    "transformers_version": lambda value: isinstance(value, str),
    "use_cache": _any_bool,
}


def plain_config(directory: Path) -> PlainConfig | None:
    """The configuration of a directory, if it is one of those that can be read here."""
    try:
        raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or not raw.keys() >= NEEDED.keys():
        return None
    checks = NEEDED | ALLOWED
    if not all(name in checks and checks[name](value) for name, value in raw.items()):
        return None
    if raw["hidden_size"] % raw["num_attention_heads"] or raw["num_attention_heads"] % raw["num_key_value_heads"]:
        return None
    return PlainConfig(**{name: raw[name] for name in PlainConfig.__dataclass_fields__ if name in raw})
