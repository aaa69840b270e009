"""load_format="dummy": a config.json alone is a model, and every kind of drafter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_cases import FAMILIES

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError
from augury.model.dummy import random_tensor
from augury.model.errors import ModelError
from augury.model.heads.dummy import DummyWeights, spread_tokens
from augury.model.load import choose_dtype, load_target

SIZE, VOCAB = 64, 300
TARGET: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": SIZE, "intermediate_size": 96,
    "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
LAYER = {**TARGET, "num_hidden_layers": 1}
BLOCK = {**TARGET, "model_type": "qwen3", "num_hidden_layers": 2, "block_size": 4}
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle": ("eagle", LAYER),
    "eagle3": ("eagle3", {**LAYER, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 100}),
    "p-eagle": ("eagle3", {**LAYER, "draft_vocab_size": 100, "ptd_token_id": 7, "norm_before_fc": True}),
    "mtp": ("mtp", {**TARGET, "num_nextn_predict_layers": 1}),
    "medusa": ("medusa", {"model_type": "medusa", "medusa_num_heads": 3, "hidden_size": SIZE, "vocab_size": VOCAB}),
    "medusa, few tokens": (
        "medusa", {"model_type": "medusa", "medusa_num_heads": 3, "medusa_num_layers": 2, "truncated_vocab_size": 50},
    ),
    "mlp": (
        "mlp_speculator",
        {"model_type": "mlp_speculator", "n_predict": 3, "emb_dim": SIZE, "inner_dim": 48, "vocab_size": VOCAB},
    ),
    "lstm": (
        "mlp_speculator",
        {"model_type": "mlp_speculator", "method": "sum_lstm", "n_predict": 3, "emb_dim": "48", "inner_dim": "48",
         "proj_dim": "48", "input_hidden_dim": SIZE, "tie_weights": True, "vocab_size": VOCAB},
    ),
    "dflash": ("dflash", {**BLOCK, "architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 5}}),
    "dspark": (
        "dspark", {**BLOCK, "architectures": ["Qwen3DSparkModel"], "markov_rank": 8, "dspark_noise_token_id": 5},
    ),
    "draft model": ("draft_model", {**TARGET, "num_hidden_layers": 2, "hidden_size": 32, "tie_word_embeddings": True}),
}  # fmt: skip
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
PROMPTS = [[1, 2, 3, 4], [7, 8, 9]]


def directory(root: Path, name: str, config: dict[str, Any]) -> str:
    """A directory that holds a config.json and nothing else."""
    (root / name).mkdir()
    (root / name / "config.json").write_text(json.dumps(config))
    return str(root / name)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """The target alone."""
    return built(directory(tmp_path_factory.mktemp("dummy"), "target", TARGET))


def built(model: str, **more: Any) -> LLM:
    """An engine over a directory without weights."""
    return LLM(
        model, load_format="dummy", skip_tokenizer_init=True, max_model_len=128, max_num_seqs=2, device="cpu", **more
    )


def texts(llm: LLM) -> list[list[int]]:
    """What it answers."""
    return [out.outputs[0].token_ids for out in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def test_a_config_is_enough_and_weights_are_the_same_every_time(plain: LLM) -> None:
    answers = texts(plain)
    assert [len(answer) for answer in answers] == [12, 12]
    assert len({*answers[0], *answers[1]}) > 4  # no degenerate model
    again = built(str(plain.model_path))
    assert texts(again) == answers
    assert sorted(path.name for path in plain.model_path.iterdir()) == ["config.json"]


@pytest.mark.parametrize("name", HEADS)
def test_every_head_drafts_and_leaves_the_text_alone(name: str, plain: LLM, tmp_path: Path) -> None:
    method, config = HEADS[name]
    spec = {"method": method, "model": directory(tmp_path, "head", config), "num_speculative_tokens": 3}
    if name == "p-eagle":
        spec["parallel_drafting"] = True
    llm = built(str(plain.model_path), speculative_config=spec, weights_of=plain)
    assert texts(llm) == texts(plain)
    assert llm.engine.stats.spec.num_draft_tokens > 0


def test_synthetic_acceptance_over_dummies(plain: LLM, tmp_path: Path) -> None:
    method, config = HEADS["eagle3"]
    spec = {
        "method": method, "model": directory(tmp_path, "head", config), "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3.0,
    }  # fmt: skip
    llm = built(str(plain.model_path), speculative_config=spec, weights_of=plain)
    assert [len(answer) for answer in texts(llm)] == [12, 12]
    # The first token comes from the prompt; then three a step, while there is room for that many drafts.
    assert llm.engine.stats.spec.accepted_per_pos[:2] == [8, 6]
    assert llm.engine.stats.spec.accepted_per_pos[2:] in ([], [0])


def test_a_model_of_transformers(tmp_path: Path) -> None:
    config = {
        "model_type": "gemma", "architectures": ["GemmaForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 99,
        "max_position_embeddings": 128,
    }  # fmt: skip
    assert [len(answer) for answer in texts(built(directory(tmp_path, "gemma", config)))] == [12, 12]


def test_no_tokenizer(plain: LLM) -> None:
    assert [out.outputs[0].text for out in plain.generate(PROMPTS, GREEDY, use_tqdm=False)] == ["", ""]
    with pytest.raises(ModelError, match="give prompt_token_ids"):
        plain.generate("a text", GREEDY, use_tqdm=False)
    with pytest.raises(ConfigError, match="stop needs a tokenizer"):
        plain.generate([[1]], SamplingParams(stop=["x"]), use_tqdm=False)
    with pytest.raises(ConfigError, match="structured_outputs needs a tokenizer"):
        plain.generate([[1]], SamplingParams(structured_outputs={"regex": "a"}), use_tqdm=False)


def test_without_dummy_weights_are_still_asked_for(plain: LLM) -> None:
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        LLM(str(plain.model_path), skip_tokenizer_init=True)


def test_experts_are_refused_in_mtp_layers(plain: LLM, tmp_path: Path) -> None:
    config = {**TARGET, "model_type": "glm4_moe", "n_routed_experts": 4, "num_nextn_predict_layers": 1}
    spec = {"method": "mtp", "model": directory(tmp_path, "head", config), "num_speculative_tokens": 1}
    with pytest.raises(ModelError, match="without experts"):
        built(str(plain.model_path), speculative_config=spec, weights_of=plain)


@pytest.mark.parametrize(("vocab", "target"), [(1, 1), (3, 7), (100, 300), (32000, 128256), (299, 300)])
def test_a_small_vocabulary_is_a_valid_map(vocab: int, target: int) -> None:
    tokens = spread_tokens(vocab, target, torch.device("cpu"))
    assert len(tokens.unique()) == vocab
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < target


def test_tensors() -> None:
    cpu = torch.device("cpu")
    matrix = random_tensor("a.weight", (200, 100), torch.float32, cpu)
    assert float(matrix.std()) == pytest.approx(0.1, rel=0.05)
    assert torch.equal(matrix, random_tensor("a.weight", (200, 100), torch.float32, cpu))
    assert not torch.equal(matrix, random_tensor("b.weight", (200, 100), torch.float32, cpu))
    assert torch.equal(random_tensor("norm.weight", (5,), torch.bfloat16, cpu), torch.ones(5, dtype=torch.bfloat16))
    bias = random_tensor("a.bias", (1000,), torch.float32, cpu)
    assert float(bias.std()) == pytest.approx(0.02, rel=0.1)
    weights = DummyWeights(Path("none"), torch.float32, cpu, ("q_norm.weight",))
    assert "layers.0.q_norm.weight" in weights
    assert "lm_head.weight" not in weights
    weights.finish("head")


def test_types(tmp_path: Path) -> None:
    stated = Path(directory(tmp_path, "stated", {**TARGET, "dtype": "float16"}))
    unsaid = Path(directory(tmp_path, "unsaid", TARGET))
    gpu = torch.device("cuda")
    assert choose_dtype(stated, "auto", gpu, dummy=True) == torch.float16
    assert choose_dtype(unsaid, "auto", gpu, dummy=True) == torch.bfloat16
    assert choose_dtype(unsaid, "auto", torch.device("cpu"), dummy=True) == torch.float32
    assert load_target(unsaid, "bfloat16", "cpu", dummy=True).embed(torch.tensor([1])).shape == (1, SIZE)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_dense_family(family: str, tmp_path: Path) -> None:
    target = load_target(directory(tmp_path, "target", FAMILIES[family].to_dict()), implementation="dense", dummy=True)
    assert target.project(torch.ones(2, target.hidden_size)).isfinite().all()
