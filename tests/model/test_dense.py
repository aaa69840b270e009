"""The dense decoder against transformers' own, for every family and rotary scaling it claims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from agreement import LENGTH, check_every_way, check_target, check_tree, stepwise, tokens
from dense_cases import FAMILIES, LONG, SIZES, save_random
from rows import Segment, give_cache, make_rows, scattered_tables
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from augury.model.dense import Dense
from augury.model.errors import ModelError
from augury.model.load import load_target

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}

BY_LENGTH = {
    "dynamic": LlamaConfig(**{**SIZES, "max_position_embeddings": 10}, rope_parameters=DYNAMIC),
    "longrope": LlamaConfig(**SIZES, rope_parameters=LONG),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_dense_agrees_with_transformers(name: str, tmp_path: Path) -> None:
    model = save_random(FAMILIES[name], tmp_path)
    target = load_target(tmp_path)
    assert isinstance(target, Dense)
    check_target(target, model, atol=3e-5)


@pytest.mark.parametrize("name", BY_LENGTH)
def test_length_dependent_rotary_scalings_do_not_depend_on_chunking(name: str, tmp_path: Path) -> None:
    model = save_random(BY_LENGTH[name], tmp_path)
    target = Dense.load(tmp_path, torch.float32, torch.device("cpu"), 64)
    ids = tokens(LENGTH, target.vocab_size)
    check_every_way(target, model, stepwise(model, ids), ids, atol=3e-5)
    check_tree(target, model, ids, atol=3e-5, stepping=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_gives_the_same_bits_alone_in_company_and_in_a_tree(dtype: str, tmp_path: Path) -> None:
    """What `same seed, same text` rests on."""
    save_random(FAMILIES["qwen3"], tmp_path)
    target = load_target(tmp_path, dtype=dtype)
    assert target.cache_dtype == torch.float32
    tables, ids = scattered_tables(2), tokens(30, 101)
    give_cache(target, 2)
    alone = torch.cat([target.forward(make_rows([Segment(0, i, [ids[i]])], tables)).logits for i in range(30)])
    for rows in (2, 3, 4, 6, 8, 12, 16):
        give_cache(target, 2)
        target.forward(make_rows([Segment(0, 0, ids[:10])], tables))
        chain = list(range(-1, rows - 1))
        padding = 16 - rows
        drafted = target.forward(
            make_rows([Segment(0, 10, ids[10 : 10 + rows], chain)], tables, padding=padding)
        ).logits
        assert torch.equal(drafted, alone[10 : 10 + rows])


def test_bf16_is_near_float32(tmp_path: Path) -> None:
    save_random(FAMILIES["llama"], tmp_path)
    rows = make_rows([Segment(0, 0, tokens(LENGTH, 101))], scattered_tables(1))
    logits = []
    for dtype in ("float32", "bfloat16"):
        target = load_target(tmp_path, dtype=dtype)
        give_cache(target, 1)
        logits.append(target.forward(rows).logits)
    assert (logits[0] - logits[1]).abs().max() < 0.02 * logits[0].abs().max()


def test_float16_is_refused_on_a_cpu(tmp_path: Path) -> None:
    save_random(FAMILIES["llama"], tmp_path)
    with pytest.raises(ModelError, match="bfloat16 or float32"):
        load_target(tmp_path, dtype="float16")
    with pytest.raises(ModelError, match="int3"):
        load_target(tmp_path, dtype="int3")


def test_wrong_weights_are_named(tmp_path: Path) -> None:
    save_random(FAMILIES["llama"], tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    weights["model.layers.7.odd"] = torch.zeros(2)
    weights["model.norm.weight"] = torch.zeros(3)
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)  # harmless
    save_file(weights, file)
    with pytest.raises(ModelError) as raised:
        load_target(tmp_path)
    message = str(raised.value)
    for part in (
        "missing: model.layers.1.mlp.up_proj.weight",
        "unexpected: model.layers.7.odd",
        "model.norm.weight is [3]",
    ):
        assert part in message
    assert "inv_freq" not in message


def test_broken_directories_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_target(tmp_path)
    save_random(FAMILIES["llama"], tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="cut short"):
        load_target(tmp_path)
    file.unlink()
    with pytest.raises(ModelError, match="no weights"):
        load_target(tmp_path)


def test_shards_read_like_one_file(tmp_path: Path) -> None:
    model = save_random(FAMILIES["llama"], tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    rows = make_rows([Segment(0, 0, tokens(5, 101))], scattered_tables(1))
    logits = []
    for name in ("one", "many"):
        target = load_target(tmp_path / name)
        give_cache(target, 1)
        logits.append(target.forward(rows).logits)
    assert torch.equal(*logits)
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    lost = sorted(set(index["weight_map"].values()))[1]
    (tmp_path / "many" / lost).unlink()
    with pytest.raises(ModelError, match=lost):
        load_target(tmp_path / "many")
