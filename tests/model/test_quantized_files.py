"""Published quantised checkpoints mean what their formats say; unknown ones are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_cases import FAMILIES, save_random
from quantized_files import FORMATS, write_quantised
from rows import Segment, make_rows, scattered_tables

from augury.kernels.quantized import Quantized
from augury.model.errors import ModelError
from augury.model.layers import PackedLinear
from augury.model.load import choose_dtype, load_target
from augury.model.schemes import READERS, read_scheme
from augury.model.target import KVCache

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2's biases, sizes that blocks of 32 do and do not divide."""
    directory = tmp_path_factory.mktemp("plain")
    save_random(FAMILIES["qwen2-plain"], directory)
    return directory


def logits(directory: Path, **how: Any) -> torch.Tensor:
    target = load_target(directory, "float32", **how)
    rows = make_rows([Segment(0, 0, list(range(9)))], scattered_tables(1))
    target.cache = KVCache.allocate(target.layer_shapes, 20 * rows.block_size, torch.float32, CPU)
    return target.forward(rows).logits


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantised_checkpoint_is_its_dequantised_twin(
    plain: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_quantised(plain, tmp_path / "quantised", name, keep=("layers.1.mlp",))
    on_numba = logits(directory), logits(directory / "means")
    assert torch.equal(*on_numba)  # unpacked when loaded: the very same numbers
    monkeypatch.setattr("augury.kernels.faces.asked", lambda: "torch")
    torch.testing.assert_close(logits(directory), on_numba[1], atol=1e-4, rtol=1e-4)
    target: Any = load_target(directory, "float32")
    kinds = [isinstance(layer.mlp.down, PackedLinear) for layer in target.layers]
    assert kinds == [True, False, True]
    assert isinstance(target.layers[0].attention.qkv.weight, Quantized)


def test_fp8_at_load_rounds_the_layers_alone(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = logits(write_quantised(plain, tmp_path, "at load") / "means")
    assert torch.equal(logits(plain, quantization="fp8"), twin)
    monkeypatch.setattr("augury.kernels.faces.asked", lambda: "torch")
    torch.testing.assert_close(logits(plain, quantization="fp8"), twin, atol=1e-4, rtol=1e-4)
    target: Any = load_target(plain, "float32", quantization="fp8")
    assert isinstance(target.layers[0].mlp.down.weight, Quantized)
    assert isinstance(target._head.weight, torch.Tensor)


def test_the_type_of_activations_is_the_configurations(plain: Path, tmp_path: Path) -> None:
    directory = write_quantised(plain, tmp_path, "awq")
    raw = json.loads((directory / "config.json").read_text())
    for stated in ("bfloat16", "float16"):
        (directory / "config.json").write_text(json.dumps(raw | {"dtype": stated, "tie_word_embeddings": False}))
        assert choose_dtype(directory, "auto", torch.device("cuda"), dummy=True) == getattr(torch, stated)


def test_a_tensor_that_is_missing_is_named(plain: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    directory = write_quantised(plain, tmp_path, "gptq")
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.0.mlp.down_proj.qzeros"]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ModelError, match=r"missing: model\.layers\.0\.mlp\.down_proj\.qzeros"):
        load_target(directory, "float32")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes', which is not supported; these are: fp8"),
        ({"quant_method": "gptq", "bits": 8}, "bits=8"),
        ({"quant_method": "gptq", "bits": 4, "desc_act": True, "group_size": 128}, "desc_act"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 48}, "group_size=48"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gemv"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "e5m2"),
        ({"quant_method": "fp8", "weight_block_size": [128, 100]}, "100 columns"),
        ({"quant_method": "fp8", "weight_block_size": "x"}, "blocks of 'x'"),
        ({"quant_method": "compressed-tensors"}, "or none"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"type": "int"}}}}, "type='int'"),
        ({}, "'None'"),
        ([1], "not a dictionary"),
    ],
)
def test_unknown_schemes_are_refused_by_name(change: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_scheme(change if isinstance(change, list) else {"bits": None, **change})


def test_what_was_asked_for_must_be_what_is_there(plain: Path, tmp_path: Path) -> None:
    directory = write_quantised(plain, tmp_path, "awq")
    load_target(directory, "float32", quantization="awq_marlin")
    with pytest.raises(ModelError, match="quantised by 'awq'; leave it out"):
        load_target(directory, "float32", quantization="fp8")
    with pytest.raises(ModelError, match="for this one use 'fp8'"):
        load_target(plain, "float32", quantization="gptq")
    assert set(READERS) == {"fp8", "compressed-tensors", "awq", "gptq"}
