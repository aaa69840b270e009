"""Heads and their files for the tests of MLP speculators."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from formulas_mlp import MLP
from torch import Tensor, nn

from augury import LLM

DEVICE = os.environ.get("AUGURY_TEST_DEVICE", "cpu")
STEPS, SIZE, INNER, VOCABULARY = 3, 64, 48, 260
Tensors = dict[str, Tensor]


def scattered(module: Any, seed: int = 3) -> Any:
    """The module with weights that matter everywhere."""
    torch.manual_seed(seed)
    for name, tensor in module.named_parameters():
        nn.init.normal_(tensor, 1.0 if "ln" in name and name.endswith("weight") else 0.0, 0.2)
    return module


def mlp(tied: bool = False, scaled: bool = False, inner: int = INNER, n: int = STEPS) -> Any:
    return scattered(MLP(n, SIZE, inner or SIZE, VOCABULARY, tied, scaled))


def config(tied: bool = False, scaled: bool = False, inner: int = INNER, **more: Any) -> dict[str, Any]:
    """As IBM writes it."""
    return {
        "model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"], "emb_dim": SIZE,
        "inner_dim": inner, "n_predict": STEPS, "vocab_size": VOCABULARY, "tie_weights": tied, "scale_input": scaled,
        "top_k_tokens_per_head": [4, 3, 2], "n_candidates": 5, **more,
    }  # fmt: skip


def arctic(kind: str = "sum_lstm", **more: Any) -> dict[str, Any]:
    """As Arctic writes it: widths are texts."""
    return {
        "model_type": "mlp_speculator", "architectures": ["ArcticLSTMSpeculatorPreTrainedModel"], "method": kind,
        "input_hidden_dim": SIZE, "inner_dim": str(INNER), "emb_dim": str(INNER), "proj_dim": str(INNER),
        "n_predict": STEPS, "vocab_size": VOCABULARY, "tie_weights": True, "scale_input": True, "tie_lstm_embs": True,
        **more,
    }  # fmt: skip


def drafted(toy_model: Path, head: Path, options: dict[str, Any] | None = None, **spec: Any) -> LLM:
    wanted = {"method": "mlp_speculator", "model": str(head), "num_speculative_tokens": STEPS, **spec}
    return LLM(str(toy_model), device=DEVICE, **{"max_model_len": 256, **(options or {})}, speculative_config=wanted)
