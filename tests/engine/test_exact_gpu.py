"""Exact mode on a GPU: the same bits for a request alone and in any company, with chains of drafts and without.

The models are random, so that their logits are flat and near-ties are everywhere: a single other bit soon shows in the
text. Log-probabilities are compared as they are, bit by bit.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from augury import LLM, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
SHAPE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 8000,
    "hidden_size": 1024,
    "intermediate_size": 9216,  # deep enough for the matrices that are read in segments
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}
PROMPTS = [[(7 * i + j * j) % 7999 for j in range(5 + 23 * i)] for i in range(12)]
SPECS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 5},
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
    "ngram_gpu": {"method": "ngram_gpu", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
}
WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "three at a time": {"max_num_seqs": 3},
    "small chunks": {"max_num_batched_tokens": 48, "max_num_seqs": 12},
    "preempted": {"num_gpu_blocks_override": 70, "max_model_len": 400},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A target and a drafter, made of nothing but configurations."""
    root = tmp_path_factory.mktemp("exact")
    for name, shape in (("target", SHAPE), ("drafter", {**SHAPE, "num_hidden_layers": 1})):
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(shape))
    return str(root / "target"), str(root / "drafter")


def answers(models: tuple[str, str], spec: str, batch: bool, logprobs: int | None, **way: Any) -> list[Any]:
    target, drafter = models
    config = SPECS[spec]
    if config is not None and config["method"] == "draft_model":
        config = {**config, "model": drafter}
    given = {"max_model_len": 512, "max_num_seqs": 12, **way}
    llm = LLM(
        target,
        device="cuda",
        dtype="bfloat16",
        load_format="dummy",
        skip_tokenizer_init=True,
        exact=True,
        speculative_config=config,
        **given,
    )
    params = [
        SamplingParams(
            temperature=0.9 * (i % 2), seed=i, max_tokens=60, ignore_eos=True, detokenize=False, logprobs=logprobs
        )
        for i in range(len(PROMPTS))
    ]
    asked = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    if batch:
        outputs = [
            *llm.generate(asked, params, use_tqdm=False),
            *llm.generate(asked, params, use_tqdm=False),
        ]  # cold, warm
    else:
        outputs = [llm.generate([a], [p], use_tqdm=False)[0] for a, p in zip(asked, params, strict=True)] * 2
    if "num_gpu_blocks_override" in way:
        assert llm.engine.stats.preemptions > 0
    return [(o.outputs[0].token_ids, _bits(o.outputs[0].logprobs)) for o in outputs]


def _bits(logprobs: Any) -> Any:
    return logprobs and [sorted((token, entry.logprob) for token, entry in place.items()) for place in logprobs]


@pytest.fixture(scope="module")
def alone(models: tuple[str, str]) -> list[Any]:
    """Each request by itself, nothing drafted."""
    return answers(models, "plain", False, 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("spec", SPECS)
def test_bits_depend_on_nothing_else(models: tuple[str, str], alone: list[Any], spec: str, way: str) -> None:
    assert answers(models, spec, True, 1, **WAYS[way]) == alone


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_text_where_passes_overlap(models: tuple[str, str], alone: list[Any], spec: str) -> None:
    """Log-probabilities make the engine wait for each pass; without them it does not."""
    assert [tokens for tokens, _ in answers(models, spec, True, None)] == [tokens for tokens, _ in alone]


@pytest.mark.parametrize("kv", ["auto", "fp8"])
def test_eight_bits_are_no_exception_fp8(models: tuple[str, str], kv: str) -> None:
    """Weights in FP8, and keys and values too: the same bits alone and plain, together and drafted."""
    eight = {"quantization": "fp8", "kv_cache_dtype": kv}
    plain = answers(models, "plain", False, 1, **eight)
    assert answers(models, "draft_model", True, 1, **eight) == plain
    assert answers(models, "ngram", True, 1, **eight, **WAYS["small chunks"]) == plain
