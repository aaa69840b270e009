"""`cpu_arithmetic: fast`: other sums than `exact`, the same promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError

NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
PROMPTS = ["one two three one two three one two", "def add(a, b):\n    return a + b\n\ndef sub(a, b):", "The sky is"]


def test_drafts_change_no_text(default_model: Path) -> None:
    settings = {"device": "cpu", "max_model_len": 256, "cpu_arithmetic": "fast"}
    plain = LLM(str(default_model), **settings)
    drafting = LLM(str(default_model), weights_of=plain, speculative_config=NGRAM, **settings)
    for temperature in (0.0, 0.8):
        params = SamplingParams(temperature=temperature, seed=7, max_tokens=20, ignore_eos=True)
        alone = [plain.generate([prompt], params, use_tqdm=False)[0].outputs[0].token_ids for prompt in PROMPTS]
        together = drafting.generate(PROMPTS, params, use_tqdm=False)
        assert [answer.outputs[0].token_ids for answer in together] == alone
    assert drafting.engine.stats.spec.num_accepted_tokens > 0


def test_other_words_are_refused(toy_model: Path) -> None:
    with pytest.raises(ConfigError, match="cpu_arithmetic"):
        LLM(str(toy_model), device="cpu", cpu_arithmetic="quick")
