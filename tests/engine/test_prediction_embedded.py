"""An edit by the embedded model: passes that an expected text saves, and that a wrong one does not cost."""

from __future__ import annotations

from pathlib import Path

from augury import LLM, SamplingParams
from augury.index.prediction import ALLOWANCE, EARNED, SHARE
from augury.tools.bench.prediction import EditsRun

HYBRID = [
    {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    {"method": "suffix", "num_speculative_tokens": 8},
]


def test_an_edit_takes_half_the_passes_at_most_and_the_text_is_the_same(default_model: Path) -> None:
    plain = LLM(str(default_model), max_model_len=1024)
    edits = EditsRun(plain, 2, 64)
    _, alone, want = edits.run("plain")
    _, expected, answers = edits.run("expected")
    assert answers == want
    assert 2 * expected <= alone
    _, wrong, answers = edits.run("wrong")
    assert answers == want
    assert wrong <= alone
    drafted, accepted = plain.engine.stats.by_drafter["prediction"]  # of the last run
    assert drafted - accepted <= 2 * (ALLOWANCE + SHARE * 64) + EARNED * accepted


def test_look_ups_together_change_no_text(default_model: Path) -> None:
    """Greedy and sampled, with every prompt at once."""
    plain = LLM(str(default_model), max_model_len=1024)
    together = LLM(str(default_model), max_model_len=1024, weights_of=plain, speculative_config=HYBRID)
    prompts = [{"prompt_token_ids": ids} for ids in EditsRun(plain, 3, 1).prompts]
    params = [SamplingParams(temperature=t, seed=7, max_tokens=32, ignore_eos=True) for t in (0.0, 0.8, 0.8)]
    want = [output.outputs[0].token_ids for output in plain.generate(prompts, params, use_tqdm=False)]
    got = [output.outputs[0].token_ids for output in together.generate(prompts, params, use_tqdm=False)]
    assert got == want
    assert together.engine.stats.spec.num_accepted_tokens > 0
