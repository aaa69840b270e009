"""Models of transformers through the adapter, against themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from agreement import LENGTH, check_every_way, check_target, check_tree, stepwise, tokens
from dense_cases import FAMILIES, LONG, MIXTURES, SIZES, save_random
from rows import Segment, give_cache, make_rows, scattered_tables
from safetensors.torch import load_file, save_file
from transformers import (
    DeepseekV3Config,
    DogeConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    Llama4TextConfig,
    MambaConfig,
    MiniMaxConfig,
    Phi3Config,
    PhimoeConfig,
    Qwen2MoeConfig,
    T5Config,
)

from augury.model.adapter import Adapter
from augury.model.dense import Dense
from augury.model.errors import ModelError
from augury.model.load import load_target

SIZES4 = {**SIZES, "num_hidden_layers": 4}
MIXED = ["sliding_attention", "full_attention"] * 2
MOE: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
FOREIGN: dict[str, Any] = {
    "gpt2": GPT2Config(vocab_size=101, n_positions=64, n_embd=32, n_layer=3, n_head=4, initializer_range=0.15),
    "gemma2": Gemma2Config(**SIZES, head_dim=16, sliding_window=6, attn_logit_softcapping=3.0),
    "gemma3": Gemma3TextConfig(**SIZES4, head_dim=16, sliding_window=6, layer_types=MIXED),
    "qwen2-moe": Qwen2MoeConfig(  # its window is in its mask alone
        **SIZES4, **MOE, num_experts=4, use_sliding_window=True, sliding_window=6, max_window_layers=2
    ),
    "qwen2-moe-unused-window": Qwen2MoeConfig(**SIZES4, **MOE, num_experts=4, sliding_window=6),  # as most are
    "phimoe": PhimoeConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=6),
    "deepseek-v3": DeepseekV3Config(
        **{**SIZES, "num_key_value_heads": 4},
        **MOE,
        n_routed_experts=4,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=12,
        first_k_dense_replace=1,
    ),
    "llama4": Llama4TextConfig(  # chunks, and layers whose queries grow with their positions
        **SIZES4,
        head_dim=16,
        intermediate_size_mlp=96,
        num_local_experts=2,
        num_experts_per_tok=1,
        attention_chunk_size=6,
        no_rope_layers=[1, 1, 0, 1],
        floor_scale=4,
        attn_scale=0.5,
        pad_token_id=0,
    ),
    "gpt-oss": GptOssConfig(**SIZES4, num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=6),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_adapter_agrees_with_transformers(name: str, tmp_path: Path) -> None:
    model = save_random(FOREIGN[name], tmp_path)
    target = load_target(tmp_path)
    assert isinstance(target, Adapter)
    check_target(target, model, atol=1e-4)


def test_dense_models_run_through_the_adapter_too(tmp_path: Path) -> None:
    for name in ("llama", "qwen2", "qwen3-moe", "mixtral"):
        model = save_random(FAMILIES[name], tmp_path / name)
        target = load_target(tmp_path / name, implementation="adapter")
        assert isinstance(target, Adapter)
        check_target(target, model, atol=1e-4 if name in MIXTURES else 3e-5)
        lean = load_target(tmp_path / name)
        assert isinstance(lean, Dense)
        assert lean.layer_shapes == target.layer_shapes


def test_length_dependent_rotary_scaling_does_not_depend_on_company(tmp_path: Path) -> None:
    config = Phi3Config(**SIZES, rope_parameters=LONG, original_max_position_embeddings=12, pad_token_id=0)
    model = save_random(config, tmp_path)
    target = load_target(tmp_path)
    ids = tokens(LENGTH, target.vocab_size)
    check_every_way(target, model, stepwise(model, ids), ids, atol=3e-5)
    check_tree(target, model, ids, atol=3e-5, stepping=True)


@pytest.mark.parametrize("name", ["gemma3", "gpt-oss"])
def test_bf16_runs(name: str, tmp_path: Path) -> None:
    model = save_random(FOREIGN[name], tmp_path)
    target = load_target(tmp_path, dtype="bfloat16")
    assert target.cache_dtype == torch.float32
    give_cache(target, 1)
    ids = tokens(6, 101)
    scores = target.forward(make_rows([Segment(0, 0, ids)], scattered_tables(1)), features=(1,))
    assert scores.logits.dtype == scores.features[0].dtype == torch.float32
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    assert torch.nn.functional.cosine_similarity(scores.logits, expected).min() > 0.98


@pytest.mark.parametrize("name", ["gemma3", "llama", "qwen3-moe", "qwen2-moe", "phimoe"])
def test_a_row_gives_the_same_bits_alone_and_in_a_tree(name: str, tmp_path: Path) -> None:
    save_random({**FOREIGN, **FAMILIES}[name], tmp_path)
    target = load_target(tmp_path, implementation="adapter")
    tables, ids = scattered_tables(2), tokens(16, 101)
    give_cache(target, 2)
    alone = torch.cat([target.forward(make_rows([Segment(0, i, [ids[i]])], tables)).logits for i in range(16)])
    give_cache(target, 2)
    target.forward(make_rows([Segment(0, 0, ids[:10])], tables))
    drafted = target.forward(make_rows([Segment(0, 10, ids[10:], list(range(-1, 5)))], tables, padding=2)).logits
    assert torch.equal(drafted, alone[10:])


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (MambaConfig(vocab_size=101, hidden_size=32, num_hidden_layers=2), "mamba"),
        (MiniMaxConfig(**SIZES4), "linear_attention"),
        (T5Config(vocab_size=101), "t5"),
        (DogeConfig(**SIZES4, num_experts=8), "'doge' cannot run here: it does not run without a mask"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_models_that_cannot_run_are_refused_by_name(config: Any, why: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=why):
        load_target(tmp_path, dummy=True)


def test_dense_is_refused_for_other_types(tmp_path: Path) -> None:
    FOREIGN["gpt2"].save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="gpt2"):
        load_target(tmp_path, implementation="dense")


def test_missing_weights_are_named(tmp_path: Path) -> None:
    save_random(FOREIGN["gpt2"], tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    lost = next(name for name in weights if name.endswith("h.1.attn.c_attn.weight"))
    save_file({name: tensor for name, tensor in weights.items() if name != lost}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="c_attn"):
        load_target(tmp_path)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot load"):
        load_target(tmp_path)


def test_a_model_that_reads_images_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    """Qwen2-VL's text part is no causal model of its own in transformers; the error says what the whole would need."""
    from transformers import Qwen2VLConfig

    Qwen2VLConfig().save_pretrained(tmp_path)
    said = r"reads images as well as text \(vision_config in its config.json\); only text is supported here"
    with pytest.raises(ModelError, match=said):
        load_target(tmp_path, dummy=True)
