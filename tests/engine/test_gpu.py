"""On a GPU: a decode pass captured as a CUDA graph and replayed draws the tokens of the eager pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from augury import LLM, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
PROMPTS = ["abcabcabc", "hello hello", "the cat sat on the mat and the cat sat", "1212121"]
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@pytest.mark.parametrize("spec", [None, NGRAM], ids=["plain", "ngram"])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 0.8},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "repetition_penalty": 1.2},
    ],
    ids=["greedy", "sampled", "everything"],
)
def test_captured_passes_draw_the_eager_tokens(toy_model: Path, spec: dict | None, options: dict) -> None:
    params = [SamplingParams(max_tokens=64, ignore_eos=True, seed=i, **options) for i in range(len(PROMPTS))]
    texts = []
    for eager in (True, False):
        llm = LLM(str(toy_model), device="cuda", max_model_len=256, speculative_config=spec, enforce_eager=eager)
        texts.append([o.outputs[0].token_ids for o in llm.generate(PROMPTS, params, use_tqdm=False)])
        captured = llm.engine.runner.captured
        assert (captured is None) if eager else (captured is not None and captured.replays > 20)
    assert texts[0] == texts[1]
