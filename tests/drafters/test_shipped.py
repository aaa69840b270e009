"""The drafters of packages/: each is found by itself, changes no token, and guesses well on prompts it never saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shipped import SHIPPED

from augury import LLM, SamplingParams
from augury.config.facts import read_facts
from augury.config.installed import installed, with_drafter
from augury.tools.shared.profile import read_profile

PACKAGE = "augury-smollm2-drafters"
ROOM = {"device": "cpu", "max_model_len": 512, "max_num_seqs": 4}
PROMPTS = ["Explain why leaves are green.", "Write a Python function that reverses a list.", "What is 17 + 25 * 2?"]
DRAFTERS = json.loads((SHIPPED / "drafters.json").read_text())["drafters"]
MOST_BYTES = 60_000_000  # of all weights together


@pytest.fixture(scope="module")
def plain(default_model: Path) -> LLM:
    return LLM(str(default_model), **ROOM)  # type: ignore[arg-type]


def answers(llm: LLM) -> list[Any]:
    greedy = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    asked = [greedy, SamplingParams(temperature=0.8, seed=3, max_tokens=48, ignore_eos=True), greedy]
    talks = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    return [out.outputs[0].token_ids for out in llm.chat(talks, asked, use_tqdm=False)]


@pytest.fixture(scope="module")
def expected(plain: LLM) -> list[Any]:
    return answers(plain)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda drafter: drafter["directory"])
def test_it_is_found_and_changes_no_token(drafter: dict[str, Any], plain: LLM, expected: list[Any]) -> None:
    assert any(one.package == PACKAGE for one in installed()), "make setup installs it"
    wanted = {"method": drafter["method"], **drafter.get("settings", {})}
    assert with_drafter(wanted, read_facts(str(plain.model_path)))["adaptive"]  # nobody said how many
    wanted["num_speculative_tokens"] = drafter["num_speculative_tokens"]
    llm = LLM(str(plain.model_path), weights_of=plain, speculative_config=wanted, **ROOM)  # type: ignore[arg-type]
    assert Path(str(llm.config.speculative_config.model)).name == drafter["directory"]
    assert answers(llm) == expected
    assert llm.engine.stats.spec.acceptance_length > 1.5  # a drafter of noise would stay near 1


def test_all_have_a_profile_and_together_they_are_small() -> None:
    folders = [SHIPPED / drafter["directory"] for drafter in DRAFTERS]
    assert sum((folder / "model.safetensors").stat().st_size for folder in folders) < MOST_BYTES
    for folder, drafter in zip(folders, DRAFTERS, strict=True):
        profile = read_profile(folder / "speculation_profile.json")
        assert profile["method"] == drafter["method"]
        assert (
            profile["mean_accept_length"] > 1.5
            and profile["num_speculative_tokens"] >= drafter["num_speculative_tokens"]
        )
