"""DFlash2 in the engine with a gate head: the text is that of plain decoding, whatever the engine does around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from generating import DEVICE, PROMPTS, encoded, held_to_plain, ids, plainly
from safetensors.torch import load_file, save_file

from augury import LLM, SamplingParams
from augury.train.gates import Gates

pytestmark = pytest.mark.usefixtures("one_thread_throughout")

K = 4


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device=DEVICE, max_model_len=256)


@pytest.fixture(scope="module")
def trained(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Knows the target's greedy answers to two prompts by heart."""
    gates = Gates(toy_model, encoded(toy_model, PROMPTS[:2]), 34, tmp_path_factory.mktemp("gates"))
    return gates.train("dflash2", steps=150).directory


def drafting(toy_model: Path, drafter: Path, engine: dict[str, Any] | None = None, **spec: Any) -> LLM:
    wanted = {"model": str(drafter), "num_speculative_tokens": K, **spec}
    return LLM(str(toy_model), device=DEVICE, **{"max_model_len": 256, **(engine or {})}, speculative_config=wanted)


TREE = {"tree": {"max_nodes": 12, "top_k": 3}}
LITERAL = {"speculative_token_tree": "[(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]", "num_speculative_tokens": 6}
SAMPLED = {"draft_sample_method": "probabilistic"}
CHUNKS, CROWDED = {"long_prefill_token_threshold": 5}, {"num_gpu_blocks_override": 18, "max_num_seqs": 8}


@pytest.mark.parametrize(
    ("engine", "spec"),
    [
        ({}, {}),
        ({"max_num_seqs": 1}, {}),
        ({**CHUNKS, "block_size": 4}, {}),
        (CROWDED, SAMPLED),
        ({}, SAMPLED),
        ({}, TREE),
        ({**CHUNKS, "max_num_seqs": 4}, TREE),
        (CROWDED, TREE),
        ({"max_num_seqs": 4}, LITERAL),
        ({}, {"max_model_len": 24}),
    ],
    ids=str,
)
def test_text_is_that_of_plain_decoding(toy_model: Path, trained: Path, plain: LLM, engine: dict, spec: dict) -> None:
    llm = drafting(toy_model, trained, engine, **spec)
    held_to_plain(llm, plain, PROMPTS, length=32)
    assert llm.engine.stats.spec.num_accepted_tokens > 0
    if "num_gpu_blocks_override" in engine:
        assert llm.engine.stats.preemptions > 0


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_rejection_rules_are_greedy_where_the_request_is(toy_model: Path, trained: Path, plain: LLM, rule: str) -> None:
    llm = drafting(toy_model, trained, **SAMPLED, rejection_sample_method=rule)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    assert ids(llm, PROMPTS, params) == plainly(plain, PROMPTS, params)
    assert llm.engine.stats.spec.num_accepted_tokens > 0


@pytest.mark.parametrize("spec", [{}, TREE], ids=["chain", "tree"])
def test_the_gate(toy_model: Path, trained: Path, tmp_path: Path, spec: dict[str, Any]) -> None:
    """What it learnt is accepted almost whole; with another selector or other convolutions in the file, far less is."""
    share = accepted(drafting(toy_model, trained, **spec))
    assert share > 0.85 * K  # the last draft of a text is cut short
    for part in ("candidate_selector.hidden_projection", "attention_conv.kernel_projection"):
        other = shuffled(trained, tmp_path / part, part)
        assert accepted(drafting(toy_model, other, **spec)) < 0.7 * share


def accepted(llm: LLM) -> float:
    """Tokens accepted of a draft on what it has learnt."""
    ids(llm, PROMPTS[:2], SamplingParams(temperature=0, max_tokens=33, ignore_eos=True))
    counted = llm.engine.stats.spec
    return counted.num_accepted_tokens / counted.num_drafts


def shuffled(trained: Path, directory: Path, part: str) -> Path:
    """The same checkpoint with large random numbers in the place of some tensors."""
    directory.mkdir()
    tensors, dice = load_file(trained / "model.safetensors"), torch.Generator().manual_seed(1)
    for name, tensor in tensors.items():
        if part in name:
            tensors[name] = torch.randn(tensor.shape, generator=dice) * 10
    save_file(tensors, directory / "model.safetensors")
    config = json.loads((trained / "config.json").read_text())
    assert config["architectures"] == ["DFlash2DraftModel"]
    (directory / "config.json").write_text(json.dumps(config))
    return directory
