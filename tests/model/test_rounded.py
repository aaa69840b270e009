"""Plain checkpoints rounded when they are loaded: by the definition, weight for weight, and the same text any way."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError
from augury.model.errors import ModelError
from augury.model.layers import PackedLinear
from augury.model.load import load_target
from augury.model.rounded import KINDS, rounded

numbers = st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, -0.0, 1e-30, 1e-45, 3.5])


def defined(block: list[float], kind: str) -> list[float]:
    """One block of 32 by the definition, in fractions; float32 where the definition says so."""
    least = min(block) if kind == "int4" else 0.0
    most, room = (max(block) - np.float32(least), 15) if kind == "int4" else (max(map(abs, block)), 127)
    bits = (np.float32(most) / np.float32(room)).view(np.int32) & ~(0xF if kind == "int4" else 0xFF)
    scale = bits.view(np.float32)
    found = []
    for weight in block:
        steps = np.float32(np.float32(weight) - np.float32(least)) / (scale if scale > 0 else np.float32(1))
        code = min(max(int(np.rint(steps)), 0 if kind == "int4" else -127), room)
        exact = Fraction(float(scale)) * code
        assert Fraction(float(np.float32(float(scale)) * np.float32(code))) == exact  # the product needs no rounding
        found.append(float(np.float32(float(exact)) + np.float32(least)))
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers, min_size=64, max_size=64), st.sampled_from(KINDS))
def test_a_weight_is_what_the_definition_says(values: list[float], kind: str) -> None:
    weight = torch.tensor(values, dtype=torch.float32).view(1, 64)
    packed = rounded(weight, kind, "w")
    expected = [one for n in (0, 32) for one in defined(weight[0, n : n + 32].tolist(), kind)]
    assert packed.unpacked()[0].tolist() == expected
    spread = (
        weight.view(2, 32).amax(1) - weight.view(2, 32).amin(1) if kind == "int4" else weight.view(2, 32).abs().amax(1)
    )
    off = (packed.unpacked() - weight).view(2, 32).abs()
    assert bool((off <= spread[:, None] / (15 if kind == "int4" else 127) * 0.501 + 1e-37).all())


def twin(source: Path, directory: Path, kind: str) -> Path:
    """A plain checkpoint of the rounded weights."""
    for file in source.iterdir():
        if file.name != "model.safetensors":
            (directory / file.name).write_bytes(file.read_bytes())
    weights = load_file(source / "model.safetensors")
    inner = {name for name in weights if "_proj.weight" in name}
    weights |= {name: rounded(weights[name].float(), kind, name).unpacked() for name in inner}
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_that_of_the_rounded_weights(kind: str, toy_model: Path, tmp_path: Path) -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    given: dict[str, Any] = {"device": "cpu", "max_model_len": 256}
    plain = LLM(str(twin(toy_model, tmp_path, kind)), **given)
    ours = LLM(str(toy_model), quantization=kind, **given)
    drafted = LLM(str(toy_model), quantization=kind, speculative_config=spec, weights_of=None, **given)
    target: Any = ours.engine.target
    assert all(isinstance(layer.mlp.down, PackedLinear) for layer in target.layers)
    params = [SamplingParams(temperature=t, seed=5, max_tokens=24, ignore_eos=True) for t in (0.0, 0.8, 0.0)]
    prompts = [{"prompt_token_ids": ids} for ids in ([65, 66, 67], [70] * 40, list(range(60, 90)) * 2)]

    def answers(llm: LLM, one_by_one: bool = False) -> list[list[int]]:
        batches = [([p], [s]) for p, s in zip(prompts, params, strict=True)] if one_by_one else [(prompts, params)]
        return [o.outputs[0].token_ids for ps, ss in batches for o in llm.generate(ps, ss, use_tqdm=False)]

    assert answers(ours) == answers(plain) == answers(drafted) == answers(ours, one_by_one=True)


def test_what_cannot_be_rounded_is_said(toy_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'int8' needs float32 activations"):
        load_target(toy_model, "bfloat16", quantization="int8")
    with pytest.raises(ModelError, match="'int4' is for CPUs; on a GPU use 'fp8'"):
        load_target(toy_model, "float32", "meta", quantization="int4")
    with pytest.raises(ModelError, match="quantised already; leave it out"):
        load_target(*_converted(toy_model, tmp_path), quantization="int4")
    with pytest.raises(ModelError, match="'fp8': this model's weights are quantised already"):
        load_target(tmp_path, "float32", quantization="fp8")
    with pytest.raises(ModelError, match="through transformers"):
        load_target(toy_model, "float32", implementation="adapter", quantization="int8")
    for kind in KINDS:
        with pytest.raises(ModelError, match="w has 40 in a line"):
            rounded(torch.zeros(4, 40), kind, "w")
        with pytest.raises(ModelError, match="w holds numbers that are not finite"):
            rounded(torch.full((1, 32), float("nan")), kind, "w")
    with pytest.raises(ConfigError, match="quantization='int2'"):
        LLM(str(toy_model), quantization="int2")


def _converted(source: Path, directory: Path) -> tuple[Path, str]:
    """What looks like a converted GGUF file."""
    for file in source.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    save_file({"x": torch.zeros(1)}, directory / "packed.safetensors", {"kinds": json.dumps({})})
    return directory, "float32"
