"""Structured output with every drafter: heads trained on the target's own answers, chains and trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structured import FORMS, PROMPTS, answers, in_form, make

from augury import LLM, SamplingParams
from augury.train.gates import KINDS, Gates

TREE = {"tree": {"max_nodes": 10, "top_k": 3}}
SHAPES = [(kind, {}) for kind in KINDS] + [(kind, TREE) for kind in KINDS if kind != "p-eagle"]
LOOKUP = {"num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return make(toy_model)


@pytest.fixture(scope="module")
def gates(toy_model: Path, plain: LLM, tmp_path_factory: pytest.TempPathFactory) -> Gates:
    prompts = [plain.get_tokenizer().encode(prompt) for prompt in PROMPTS[:2]]
    return Gates(toy_model, prompts, 24, tmp_path_factory.mktemp("gates"))


@pytest.mark.parametrize(
    ("kind", "shape"), [*SHAPES, ("ngram_gpu", {})], ids=lambda x: x if isinstance(x, str) else "tree" * bool(x)
)
def test_form_and_text_whatever_drafts(
    toy_model: Path, plain: LLM, gates: Gates, kind: str, shape: dict[str, Any]
) -> None:
    params = [
        SamplingParams(temperature=t, seed=i, max_tokens=40, structured_outputs=FORMS[name])
        for i, (name, t) in enumerate([("regex", 0.0), ("json", 0.8), ("grammar", 0.8), ("choice", 0.0)])
    ]
    want = answers(plain, PROMPTS[:4], params)
    llm = drafting(toy_model, gates, kind, shape)
    assert answers(llm, PROMPTS[:4], params) == want
    for name, (_, text, reason) in zip(("regex", "json", "grammar", "choice"), want, strict=True):
        assert reason == "length" or in_form(name, text)
    assert llm.engine.stats.spec.num_draft_tokens > 0  # some guesses were in form


def drafting(toy_model: Path, gates: Gates, kind: str, shape: dict[str, Any]) -> LLM:
    if kind == "ngram_gpu":
        return make(toy_model, {"method": kind, **LOOKUP})
    gate = gates.find(kind) or gates.train(kind, steps=20)
    method = {"p-eagle": "eagle3", "dflash2": "dflash"}.get(kind, kind)
    spec: dict[str, Any] = {"method": method, "num_speculative_tokens": 3, **shape}
    if kind == "p-eagle":
        spec["parallel_drafting"] = True
    if kind == "mtp":  # its layer lies among the target's own tensors
        return make(gate.directory, spec, block_size=4)
    return make(toy_model, spec | {"model": str(gate.directory)}, block_size=4)
