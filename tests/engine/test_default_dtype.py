"""A program's default dtype is its own affair: the engine computes what it always does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from shallow import shallow_copy

from augury import LLM, SamplingParams

PROMPTS = ["abcabcabc", "hello hello", "the cat sat on the mat and the cat sat"]
SPECS = {
    "plain": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
    "suffix": {"method": "suffix"},
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 3},
    "draft_model tree": {"method": "draft_model", "num_speculative_tokens": 3, "tree": {"max_nodes": 8, "top_k": 2}},
    "draft_model block": {
        "method": "draft_model", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
    },
}  # fmt: skip


@pytest.fixture
def restored() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", SPECS)
def test_the_default_dtype_changes_nothing(name: str, toy_model: Path, tmp_path: Path, restored: None) -> None:
    spec = SPECS[name]
    if spec is not None and spec["method"] == "draft_model":
        spec = {**spec, "model": str(shallow_copy(toy_model, [0], tmp_path / "shallow"))}
    params = [
        SamplingParams(max_tokens=24, temperature=t, top_p=0.9, repetition_penalty=1.1, logprobs=2, seed=i)
        for i, t in enumerate((0.0, 0.8, 1.0))
    ]
    answers = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        torch.set_default_dtype(dtype)
        llm = LLM(str(toy_model), device="cpu", dtype="float32", max_model_len=128, speculative_config=spec)
        answers.append([o.outputs[0].token_ids for o in llm.generate(PROMPTS, params, use_tqdm=False)])
    assert all(answer == answers[0] for answer in answers)
