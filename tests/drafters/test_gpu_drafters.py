"""Drafters on a GPU: target and drafter captured together replay to what they compute eagerly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from eagle_cases import DRAFT as EAGLE_CONFIG
from eagle_cases import eagle3_module, eagle_module, write_eagle3
from gate import export
from generating import PROMPTS
from shallow import shallow_copy

from augury import LLM, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

TREE = {"tree": {"max_nodes": 12, "top_k": 3}}
GIVEN = {"speculative_token_tree": "[(0,), (1,), (0, 0), (0, 1)]"}
SAMPLED = {"draft_sample_method": "probabilistic"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle3 chain": ("eagle3", {}),
    "eagle3 tree": ("eagle3", TREE),
    "eagle3 given tree": ("eagle3", GIVEN),
    "eagle3 sampled": ("eagle3", SAMPLED),
    "eagle3 block": ("eagle3", {**SAMPLED, "rejection_sample_method": "block"}),
    "p-eagle": ("p-eagle", {"parallel_drafting": True}),
    "eagle chain": ("eagle", {}),
    "draft model": ("draft_model", {}),
    "draft model tree": ("draft_model", TREE),
    "draft model standard": ("draft_model", {**SAMPLED, "rejection_sample_method": "standard"}),
    "ngram_gpu": ("ngram_gpu", {"prompt_lookup_max": 3, "prompt_lookup_min": 1}),
}


@pytest.fixture(scope="module")
def heads(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("heads")
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    return {
        "eagle": export(eagle_module(), EAGLE_CONFIG, root / "eagle"),
        "eagle3": write_eagle3(root / "eagle3", eagle3_module(), **layers),
        "p-eagle": write_eagle3(root / "p", eagle3_module(mask_hidden=True), mask_token_id=259, **layers),
        "draft_model": shallow_copy(toy_model, [0], root / "model"),
    }


@pytest.mark.parametrize("name", CASES)
def test_one_graph_for_target_and_drafter(toy_model: Path, heads: dict[str, Path], name: str) -> None:
    method, options = CASES[name]
    spec = {"method": method.replace("p-eagle", "eagle3"), "num_speculative_tokens": 3, **options}
    if "speculative_token_tree" in spec:
        del spec["num_speculative_tokens"]
    if method in heads:
        spec["model"] = str(heads[method])
    runs = []
    for eager in (True, False):
        llm = LLM(str(toy_model), device="cuda", max_model_len=256, enforce_eager=eager, speculative_config=spec)
        tokens = []
        for temperature in (0.0, 0.8):
            params = [SamplingParams(temperature=temperature, seed=i, max_tokens=32, ignore_eos=True) for i in range(8)]
            outputs = llm.generate(PROMPTS, params, use_tqdm=False)
            tokens.append([o.outputs[0].token_ids for o in outputs])
        runs.append(tokens)
        assert llm.engine.drafter is not None and not llm.engine.drafter.on_host
        if not eager:
            assert llm.engine.runner.captured is not None and llm.engine.runner.captured.replays > 20
            assert llm.engine.stats.spec.num_draft_tokens > 0
    assert runs[0] == runs[1]
