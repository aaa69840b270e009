"""Mixtures of experts in the dense decoder: both layouts of their checkpoints, any company, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from agreement import tokens
from dense_cases import MIXTURES, save_random
from rows import Segment, give_cache, make_rows, scattered_tables
from safetensors.torch import load_file, save_file

from augury import LLM
from augury.config.errors import ConfigError
from augury.model.dense import Dense
from augury.model.errors import ModelError
from augury.model.layers import GatedMLP, Mixture
from augury.model.load import check_split, load_target

FAMILIES = ("qwen3-moe", "mixtral")
IDS = tokens(40, 101)


def scores(directory: Path, **settings: Any) -> torch.Tensor:
    target = load_target(directory, **settings)
    give_cache(target, 1)
    return target.forward(make_rows([Segment(0, 0, IDS)], scattered_tables(1))).logits


def save_stacked(model: Any, directory: Path) -> None:
    """The checkpoint with a layer's experts in two tensors, as transformers 5 holds them."""
    model.config.save_pretrained(directory)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, directory / WEIGHTS)


WEIGHTS = "model.safetensors"


@pytest.mark.parametrize("name", FAMILIES)
def test_both_layouts_of_a_checkpoint_are_one_model(name: str, tmp_path: Path) -> None:
    model = save_random(MIXTURES[name], tmp_path / "published")
    save_stacked(model, tmp_path / "stacked")
    published, stacked = (set(load_file(tmp_path / layout / WEIGHTS)) for layout in ("published", "stacked"))
    assert any(".experts.3." in key for key in published) and not any(".experts.3." in key for key in stacked)
    for dtype in ("float32", "bfloat16"):
        both = [scores(tmp_path / layout, dtype=dtype) for layout in ("published", "stacked")]
        assert torch.equal(*both)
    exact = scores(tmp_path / "stacked")
    assert (both[0] - exact).norm() < 0.05 * exact.norm()  # bf16 is near float32


@pytest.mark.parametrize(("name", "kinds"), [("qwen3-moe", (0, 1, 0)), ("qwen3-moe-normed", (1, 0, 1))])
def test_the_layers_that_a_configuration_names_are_mixtures(name: str, kinds: tuple[int, ...], tmp_path: Path) -> None:
    save_random(MIXTURES[name], tmp_path)
    target = load_target(tmp_path)
    assert isinstance(target, Dense) and target.capturable
    assert [type(layer.mlp) for layer in target.layers] == [Mixture if kind else GatedMLP for kind in kinds]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("qwen3-moe-normed", "float32"), ("qwen3-moe-normed", "bfloat16"), ("mixtral-window", "float32")],
)
def test_a_row_gives_the_same_bits_alone_and_in_company(name: str, dtype: str, tmp_path: Path) -> None:
    """Alone, in chains of drafts, and as a prompt of 40 rows, of which an expert has more than sixteen."""
    save_random(MIXTURES[name], tmp_path)
    target = load_target(tmp_path, dtype=dtype)
    tables, count = scattered_tables(2), len(IDS)
    give_cache(target, 2)
    alone = torch.cat([target.forward(make_rows([Segment(0, i, [IDS[i]])], tables)).logits for i in range(count)])
    give_cache(target, 2)
    assert torch.equal(target.forward(make_rows([Segment(0, 0, IDS)], tables)).logits, alone)
    for rows in (2, 3, 7, 16):
        give_cache(target, 2)
        target.forward(make_rows([Segment(0, 0, IDS[:10])], tables))
        nodes = Segment(0, 10, IDS[10 : 10 + rows], list(range(-1, rows - 1)))
        drafted = target.forward(make_rows([nodes, Segment(1, 0, IDS[5:30])], tables, padding=3)).logits
        assert torch.equal(drafted[:rows], alone[10 : 10 + rows])


def test_dummies_are_made_of_mixtures_too(tmp_path: Path) -> None:
    for name in FAMILIES:
        MIXTURES[name].save_pretrained(tmp_path / name)
        assert scores(tmp_path / name, dummy=True).isfinite().all()


def test_wrong_weights_are_named(tmp_path: Path) -> None:
    save_random(MIXTURES["mixtral"], tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    del weights["model.layers.1.block_sparse_moe.experts.2.w3.weight"]
    weights["model.layers.0.block_sparse_moe.gate.weight"] = torch.zeros(3, 64)
    save_file(weights, tmp_path / WEIGHTS)
    with pytest.raises(ModelError) as raised:
        load_target(tmp_path)
    assert "missing: model.layers.1.block_sparse_moe.experts.2.w3.weight" in str(raised.value)
    assert "model.layers.0.block_sparse_moe.gate.weight is [3, 64], not [4, 64]" in str(raised.value)


def save_config(directory: Path, **changes: Any) -> Path:
    config = type(MIXTURES["mixtral"])(**{**MIXTURES["mixtral"].to_dict(), **changes})
    config.save_pretrained(directory)
    return directory


def test_what_mixtures_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    plain = save_config(tmp_path / "plain")
    with pytest.raises(ModelError, match="quantization='fp8' does not round the experts of 'mixtral'"):
        load_target(plain, dummy=True, quantization="fp8")
    with pytest.raises(ConfigError, match="enable_lora: adapters of a model with mixtures of experts"):
        LLM(str(plain), load_format="dummy", skip_tokenizer_init=True, device="cpu", enable_lora=True)
    with pytest.raises(ModelError, match="tensor_parallel_size=2 cannot divide the experts of 'mixtral' yet"):
        check_split(MIXTURES["mixtral"], "auto", 2)
    many = save_config(tmp_path / "many", num_experts_per_tok=9)
    with pytest.raises(ModelError, match="num_experts_per_tok=9 of 4 experts cannot be chosen"):
        load_target(many, dummy=True)
    coded = save_config(
        tmp_path / "coded", quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}
    )
    with pytest.raises(ModelError, match="holds quantised weights, which are not supported here"):
        load_target(coded)
