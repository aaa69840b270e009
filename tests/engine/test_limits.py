"""What fresh testers broke: trees at the end of the context, prompts scored twice, streams side by side, odd heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle_cases import EAGLE3, eagle3_module
from generating import ids
from safetensors.torch import load_file, save_file
from shallow import shallow_copy

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError
from augury.engine.build import check_exact
from augury.model.errors import ModelError

TREE = {"num_speculative_tokens": 4, "tree": {"max_nodes": 32, "top_k": 4}}


@pytest.fixture(scope="module")
def weak(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shallow_copy(toy_model, [0], tmp_path_factory.mktemp("weak"))


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from gate import export

    config = {**EAGLE3, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    return export(eagle3_module(), config, tmp_path_factory.mktemp("head"))


def load(model: Path, spec: dict[str, Any] | None = None, **options: Any) -> LLM:
    return LLM(str(model), device="cpu", **{"max_model_len": 64, **options}, speculative_config=spec)


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_tree_at_the_end_of_the_context(
    toy_model: Path, weak: Path, head: Path, method: str, block_size: int
) -> None:
    spec = {"method": method, "model": str(weak if method == "draft_model" else head), **TREE}
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    prompts = [{"prompt_token_ids": [40 + i] * (64 - left)} for i, left in enumerate((1, 2, 20, 33))]
    want = ids(load(toy_model), prompts, params)
    assert ids(load(toy_model, spec, block_size=block_size), prompts, params) == want
    assert [len(answer) for answer in want] == [1, 2, 20, 33]


def test_prompts_are_scored_once_whoever_was_put_off(toy_model: Path) -> None:
    """The first answer grows into the blocks of the second prompt while that one is still being read."""
    prompts = [{"prompt_token_ids": list(range(30, 38))}, {"prompt_token_ids": [(7 * j) % 250 for j in range(40)]}]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, prompt_logprobs=1) for n in (44, 4)]
    want = load(toy_model).generate(prompts, params, use_tqdm=False)
    tight = load(toy_model, block_size=4, num_gpu_blocks_override=17, long_prefill_token_threshold=1, max_num_seqs=2)
    found = tight.generate(prompts, params, use_tqdm=False)
    assert tight.engine.stats.preemptions > 0
    for ours, theirs in zip(found, want, strict=True):
        assert ours.prompt_logprobs == theirs.prompt_logprobs


def test_streams_side_by_side_lose_nothing(toy_model: Path) -> None:
    llm, params = load(toy_model), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    want = ids(llm, ["abcabc", "hello"], params)
    streams, texts = [llm.stream(prompt, params) for prompt in ("abcabc", "hello")], [[], []]
    for turn in range(4):
        for stream, text in zip(streams, texts, strict=True):
            text += next(stream).tokens
        if turn == 1:
            assert ids_while_streaming(llm, params) == want[0]
    for stream, text in zip(streams, texts, strict=True):
        for update in stream:
            text += update.tokens
    assert texts == want and not llm.engine.busy


def ids_while_streaming(llm: LLM, params: SamplingParams) -> list[int]:
    return llm.generate(["abcabc"], params, use_tqdm=False)[0].outputs[0].token_ids


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("eagle_aux_hidden_state_layer_ids", 3, "must be a list of layers"),
        ("eagle_aux_hidden_state_layer_ids", [], "must be a list of layers"),
        ("num_attention_heads", 0, "num_attention_heads=0"),
        ("num_attention_heads", "4", "num_attention_heads='4'"),
        ("num_hidden_layers", 0, "num_hidden_layers=0"),
        ("draft_vocab_size", -1, "draft_vocab_size=-1"),
        ("draft_vocab_size", "53", "draft_vocab_size='53'"),
        ("mask_token_id", 5000, "mask token 5000"),
        ("hidden_act", "relu", "hidden_act='relu'"),
        ("quantization_config", {"bits": 4}, "quantised"),
    ],
)
def test_odd_configurations_of_a_head_are_named(
    toy_model: Path, head: Path, tmp_path: Path, key: str, value: Any, words: str
) -> None:
    (tmp_path / "model.safetensors").symlink_to(head / "model.safetensors")
    config = json.loads((head / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises((ModelError, ValueError), match=words):
        load(toy_model, {"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": 2})


@pytest.mark.parametrize("spoilt", ["NaN", "whole numbers", "fractions in d2t", "twins in d2t"])
def test_odd_tensors_of_a_head_are_named(toy_model: Path, head: Path, tmp_path: Path, spoilt: str) -> None:
    tensors = load_file(head / "model.safetensors")
    if spoilt == "NaN":
        tensors["fc.weight"][3, 4] = float("nan")
    elif spoilt == "whole numbers":
        tensors["fc.weight"] = tensors["fc.weight"].char()
    elif spoilt == "fractions in d2t":
        tensors["d2t"] = tensors["d2t"].float()
    else:
        tensors["d2t"][5] = tensors["d2t"][4] - 1
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((head / "config.json").read_text())
    with pytest.raises(ModelError, match="d2t" if "d2t" in spoilt else "fc.weight"):
        load(toy_model, {"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": 2})


def test_a_tree_of_masks_is_refused(toy_model: Path, head: Path) -> None:
    with pytest.raises(ValueError, match="parallel_drafting drafts a chain"):
        load(toy_model, {"method": "eagle3", "model": str(head), "parallel_drafting": True, **TREE})


def test_ranks_beyond_the_vocabulary_are_refused(toy_model: Path, weak: Path) -> None:
    spec = {"method": "draft_model", "model": str(weak), "speculative_token_tree": "[(500,), (0,)]"}
    with pytest.raises(ValueError, match="child 500"):
        load(toy_model, {**spec, "num_speculative_tokens": 2})


def test_tokens_the_drafter_has_no_row_for_harm_nobody(toy_model: Path, weak: Path, tmp_path: Path) -> None:
    """The target's padded rows are nobody's tokens, but a prompt may name one all the same."""
    for file in weak.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"][:257].clone()
    tensors.pop("lm_head.weight", None)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text()) | {"vocab_size": 257}
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = {"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 3}
    prompts = [{"prompt_token_ids": [64, 259, 65, 66]}, {"prompt_token_ids": [64, 65, 66, 64, 65]}]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    assert ids(load(toy_model, spec), prompts, params) == ids(load(toy_model), prompts, params)


def test_exact_mode_refuses_trees_on_a_gpu(toy_model: Path, weak: Path) -> None:
    """A CPU is exact with trees, too."""
    spec = {"method": "draft_model", "model": str(weak), **TREE}
    llm = LLM(str(toy_model), device="cpu", max_model_len=128, exact=True, speculative_config=spec)
    with pytest.raises(ConfigError, match="exact=True covers chains of drafts on a GPU, not trees"):
        check_exact(llm.config, torch.device("cuda"), llm.engine.drafter)
    check_exact(llm.config, torch.device("cuda"), None)


def test_weights_are_lent_only_to_the_same_arithmetic(toy_model: Path) -> None:
    plain = LLM(str(toy_model), device="cpu", max_model_len=128)
    with pytest.raises(ConfigError, match="weights_of: exact differs"):
        LLM(str(toy_model), device="cpu", max_model_len=128, exact=True, weights_of=plain)
    with pytest.raises(ConfigError, match="weights_of: cpu_arithmetic differs"):
        LLM(str(toy_model), device="cpu", max_model_len=128, cpu_arithmetic="fast", weights_of=plain)
