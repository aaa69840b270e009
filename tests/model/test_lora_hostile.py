"""Adapters from strangers: whatever their files hold, one clear line, in bounded time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from augury.engine.trace import _probabilities
from augury.model.errors import ModelError
from augury.model.lora_files import read_adapter

SHAPES = {"q_proj": (6, 5), "up_proj": (7, 5)}
PYTHON = ("Error", "NoneType", "True", "False", "object is not", "float(", "Traceback")


def write(directory: Path, tensors: dict[str, Any] | None = None, **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    made: dict[str, Any] = {}
    for layer in range(4):
        for parent, part in (("self_attn", "q_proj"), ("mlp", "up_proj")):
            at = f"base_model.model.model.layers.{layer}.{parent}.{part}"
            made[f"{at}.lora_A.weight"] = torch.ones(2, 5)
            made[f"{at}.lora_B.weight"] = torch.ones(SHAPES[part][0], 2)
    save_file({**made, **(tensors or {})}, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}))
    return directory


def refusal(directory: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_adapter(directory, SHAPES, 4, 8)
    said = str(caught.value)
    assert not any(word in said for word in PYTHON) and len(said) < 500, said
    return said


ODD: list[tuple[dict[str, Any], str]] = [
    ({"alpha_pattern": {r"((\w+)\.?)+!": 2}}, "is not a name"),  # it ran for ever in the engine
    ({"alpha_pattern": {"[": 2}}, "is not a name"),
    ({"alpha_pattern": {"x" * 100_000: 2}}, "is not a name"),
    ({"alpha_pattern": [1]}, "alpha_pattern"),
    ({"alpha_pattern": {"q_proj": "4"}}, "must be a number"),
    ({"alpha_pattern": {"q_proj": float("nan")}}, "must be a number"),
    ({"lora_alpha": float("nan")}, "must be a number"),
    ({"lora_alpha": float("inf")}, "must be a number"),
    ({"lora_alpha": 10**400}, "must be a number"),
    ({"lora_alpha": 1e308}, "overflow once scaled"),
    ({"lora_alpha": "8"}, "must be a number"),
    ({"lora_alpha": True}, "must be a number"),
    ({"use_rslora": "yes"}, "use_rslora"),
    ({"r": -1}, "whole number"),
    ({"r": 0}, "whole number"),
    ({"r": 10**18}, "max_lora_rank=8"),
    ({"r": "8"}, "whole number"),
    ({"r": [1] * 100_000}, "whole number"),
    ({"use_dora": True}, "use_dora=true is not supported"),
    ({"bias": {"a": [1] * 100_000}}, "bias="),
    ({"peft_type": ["LORA"]}, "peft_type"),
]


@pytest.mark.parametrize(("config", "says"), ODD)
def test_odd_configurations(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    assert says in refusal(write(tmp_path / "a", **config))


AT = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({f"{AT}.lora_A.weight": torch.ones(())}, "matrices"),
        ({f"{AT}.lora_A.weight": torch.ones(2, 5, dtype=torch.int64)}, "matrices"),
        ({f"{AT}.lora_A.weight": torch.ones(0, 5), f"{AT}.lora_B.weight": torch.ones(6, 0)}, "do not fit"),
        ({f"model.layers.{'9' * 5000}.self_attn.q_proj.lora_A.weight": torch.ones(2, 5)}, "matches no projection"),
    ],
)
def test_odd_tensors(tmp_path: Path, tensors: dict[str, Any], says: str) -> None:
    assert says in refusal(write(tmp_path / "a", tensors))


def test_odd_files(tmp_path: Path) -> None:
    file = write(tmp_path / "a") / "adapter_config.json"
    for text in ("[" * 100_000, "[]", "{", "\ud800"):
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        refusal(tmp_path / "a")
    file.unlink()
    os.mkfifo(file)
    assert "not a regular file" in refusal(tmp_path / "a")


def test_names_give_projections_an_alpha_of_their_own(tmp_path: Path) -> None:
    own = {"layers.1.self_attn.q_proj": 40, "q_proj": 20, "proj": 1000}
    found = read_adapter(write(tmp_path / "a", alpha_pattern=own), SHAPES, 4, 8)
    scales = {key: float(up[0, 0]) for key, (_, up) in found.items()}
    assert [scales[n, "q_proj"] for n in range(4)] == [10.0, 20.0, 10.0, 10.0]
    assert {scales[n, "up_proj"] for n in range(4)} == {2.0}


def test_probabilities_that_are_no_numbers_are_null() -> None:
    logits = torch.tensor([[0.0, 0.0], [float("nan"), 0.0]])
    output: Any = SimpleNamespace(scores=SimpleNamespace(logits=logits))
    assert _probabilities(output, 0, [0, 1], [-1, 0]) == [0.5, None]
