"""Rotary angles as tables, one row per position, with the checkpoint's scaling.

Scalings that look at the length of the sequence (dynamic, longrope) are tabulated as token-by-token decoding sees them:
position p belongs to a sequence of length p + 1. So a key does not depend on how its prompt was chunked.

LongRoPE goes further: past its original length *all* keys of a sequence are rotated by the long factors. Rows say
whether their sequence is that long (Rows.long), and the engine prefills a sequence that grows past that length anew.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from augury.model.errors import ModelError

WHOLE = ("llama", "mistral", "qwen2", "qwen3")  # transformers rotates whole heads, whatever partial_rotary_factor says
SLACK = 64  # a draft at the very end may run past the last position


def rotary_tables(config: Any, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [length + SLACK, rotated / 2], the attention factor multiplied in."""
    length += SLACK
    parameters = config.rope_parameters
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        frequencies, factor = _plain(config, parameters), 1.0
    elif kind in ("dynamic", "longrope"):
        frequencies, factor = _by_length(config, kind, parameters, length)
    elif kind in (scalings := _scalings()):
        frequencies, factor = scalings[kind](config, torch.device("cpu"))
    else:
        known = ", ".join(sorted(scalings))
        raise ModelError(f"rope_type {kind!r} is unknown; known are default, {known}.")
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies.float()
    return angles.cos() * factor, angles.sin() * factor


def context_length(config: Any) -> int:
    """The longest context a checkpoint was made for, counted as vLLM does: some scalings stretch the stated length."""
    stated: int = config.max_position_embeddings
    parameters = getattr(config, "rope_parameters", None) or {}
    kind, factor = parameters.get("rope_type"), parameters.get("factor") or 1.0
    if kind == "yarn":
        return int(parameters.get("original_max_position_embeddings", stated) * factor)
    return int(stated * factor) if kind in ("linear", "dynamic") else stated


def switch_length(config: Any) -> int:
    """The sequence length beyond which all keys are rotated differently; 0: there is none."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if parameters.get("rope_type") != "longrope" or parameters["short_factor"] == parameters["long_factor"]:
        return 0
    original = int(parameters["original_max_position_embeddings"])
    return original if original < context_length(config) else 0


def long_tables(config: Any, length: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """LongRoPE's cos and sin for texts up to its original length, and for those beyond; see rotary_tables."""
    compute, original = _scalings()["longrope"], config.rope_parameters["original_max_position_embeddings"]
    found = []
    for size in (original, original + 1):
        frequencies, factor = compute(config, torch.device("cpu"), seq_len=size)
        angles = torch.arange(length + SLACK, dtype=torch.float32)[:, None] * frequencies.float()
        found.append((angles.cos() * factor, angles.sin() * factor))
    return found[0], found[1]


def head_dim(config: Any) -> int:
    """The explicit head dimension, else the hidden size divided by the number of heads."""
    stated: int | None = getattr(config, "head_dim", None)
    return stated or int(config.hidden_size // config.num_attention_heads)


def _scalings() -> dict[str, Any]:
    """transformers' formulas by their names; most models have none, and importing it takes a second."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    return ROPE_INIT_FUNCTIONS


def _plain(config: Any, parameters: dict[str, Any]) -> Tensor:
    partial = 1.0 if config.model_type in WHOLE else parameters.get("partial_rotary_factor", 1.0)
    rotated = int(head_dim(config) * partial)
    base: float = parameters["rope_theta"]
    return 1.0 / (base ** (torch.arange(0, rotated, 2, dtype=torch.float32) / rotated))


def _by_length(config: Any, kind: str, parameters: dict[str, Any], length: int) -> tuple[Tensor, float]:
    """Frequencies [length, rotated / 2] of scalings that depend on the length of the sequence."""
    compute = _scalings()[kind]
    lengths = torch.arange(1, length + 1)[:, None]
    if kind == "dynamic":
        scaled: tuple[Tensor, float] = compute(config, torch.device("cpu"), seq_len=lengths)
        return scaled
    original = parameters["original_max_position_embeddings"]
    short, factor = compute(config, torch.device("cpu"), seq_len=original)
    long, _ = compute(config, torch.device("cpu"), seq_len=original + 1)
    return torch.where(lengths > original, long, short), factor
