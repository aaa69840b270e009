"""Engines with 8-bit weights, keys and values: what they say, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError

PROMPTS = [[5, 9, 2, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9]]
GIVEN: dict[str, Any] = {"device": "cpu", "max_model_len": 64, "max_num_seqs": 2, "skip_tokenizer_init": True}


def tokens(model: Path, **how: Any) -> list[list[int]]:
    llm = LLM(str(model), **GIVEN, **how)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers]


def test_drafts_change_nothing_with_eight_bits(toy_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augury.kernels.faces.asked", lambda: "torch")
    eight = {"quantization": "fp8", "kv_cache_dtype": "fp8"}
    spec = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    assert tokens(toy_model, **eight) == tokens(toy_model, **eight, speculative_config=spec)
    llm = LLM(str(toy_model), **GIVEN, kv_cache_dtype="fp8")
    assert llm.engine.target.cache.keys[0].dtype == torch.float8_e4m3fn


def test_fp8_weights_run_on_a_cpu_too_but_not_such_a_cache(toy_model: Path) -> None:
    assert all(len(answer) == 12 for answer in tokens(toy_model, quantization="fp8"))
    with pytest.raises(ConfigError, match="kv_cache_dtype='fp8' runs on a GPU only"):
        LLM(str(toy_model), **GIVEN, kv_cache_dtype="fp8")
    with pytest.raises(ConfigError, match="quantization='bitsandbytes': input should be 'fp8'"):
        LLM(str(toy_model), **GIVEN, quantization="bitsandbytes")
