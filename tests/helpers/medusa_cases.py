"""Heads and their files for the tests of Medusa."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from augury import LLM

DEVICE = os.environ.get("AUGURY_TEST_DEVICE", "cpu")
HEADS, SIZE, VOCABULARY = 4, 64, 260
CONFIG = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "toy"}  # 2, and 4 are there
LITERAL = "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 0, 2), (0, 0, 0, 0)]"
ORDERED = [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0), (1,), (0, 1), (1, 0), (2,), (1, 0, 2)]  # best ranks first
Tensors = dict[str, Tensor]


def native_names(tensors: Tensors, layers: int) -> Tensors:
    """The original names as vLLM's."""
    renamed = {}
    for name, tensor in tensors.items():
        head, layer, *rest = name.split(".")
        last = int(layer) == layers
        renamed[f"lm_heads.{head}.weight" if last else f"blocks.{head}.layers.{layer}.{rest[-1]}"] = tensor
    return renamed


def drafted(toy_model: Path, heads: Path, options: dict[str, Any] | None = None, **spec: Any) -> LLM:
    wanted = {"method": "medusa", "model": str(heads), "num_speculative_tokens": HEADS, **spec}
    return LLM(str(toy_model), device=DEVICE, **{"max_model_len": 256, **(options or {})}, speculative_config=wanted)


SHAPES: dict[str, dict[str, Any]] = {
    "chain": {},
    "written tree": {"speculative_token_tree": LITERAL, "num_speculative_tokens": 9},
    "best-first tree": {"tree": {"max_nodes": 16, "top_k": 4}},
}
