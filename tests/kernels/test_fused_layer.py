"""A layer in one call computes what its steps compute one by one, and treats every row alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from rows import Segment, give_cache, make_rows, scattered_tables
from tiny_gguf import write_and_convert

from augury.kernels.fused_layer import FusedLayer
from augury.model.dense import Dense
from augury.model.load import load_target
from augury.model.target import Target

CPU = torch.device("cpu")
TOKENS = list(range(3, 160))  # more than one panel of rows
CASES: list[tuple[str, Kind, dict[str, Any]]] = [
    ("llama", Kind.Q4_1, {"attention_bias": True}),
    ("llama", Kind.Q8_0, {"tie_word_embeddings": False}),
    ("qwen2", Kind.Q4_0, {}),  # biases on queries, keys and values
    ("qwen3", Kind.Q4_1, {}),  # norms of queries and keys
]


def scores(target: Target, *pieces: list[int]) -> torch.Tensor:
    tables = scattered_tables(1, blocks=48)
    give_cache(target, slots=1, blocks=48)
    found, start = [], 0
    for piece in pieces:
        found.append(target.forward(make_rows([Segment(0, start, piece)], tables)).logits)
        start += len(piece)
    return torch.cat(found)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(("architecture", "kind", "changes"), CASES)
def test_layers_in_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, kind: Kind, changes: dict[str, Any], fast: bool
) -> None:
    monkeypatch.setattr("augury.kernels.machine.DOT_PRODUCTS", True)
    _, directory = write_and_convert(tmp_path, architecture, kind, **changes)
    whole = load_target(directory, "float32", CPU, 256, fast=fast)
    assert isinstance(whole, Dense) and all(isinstance(layer, FusedLayer) for layer in whole._runs)
    monkeypatch.setattr(FusedLayer, "of", lambda *_: None)
    steps = load_target(directory, "float32", CPU, 256, fast=fast)
    fused = scores(whole, TOKENS)
    torch.testing.assert_close(fused, scores(steps, TOKENS), rtol=0, atol=0.05 if fast else 2e-4)
    pieces = [TOKENS[:1], TOKENS[1:6], TOKENS[6:70], TOKENS[70:]]
    assert torch.equal(fused, scores(whole, *pieces))
    if not fast:
        floats = load_target(directory, "float32", CPU, 256, packed=False)
        torch.testing.assert_close(fused, scores(floats, TOKENS), rtol=0, atol=2e-4)
