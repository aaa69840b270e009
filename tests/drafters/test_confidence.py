"""Chains that end where the next guess would not pay: judged as a plain loop would, and nothing else is disturbed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from generating import PROMPTS, held_to_plain, ids
from hypothesis import given, settings
from hypothesis import strategies as st
from random_drafters import drafter

from augury import LLM, SamplingParams
from augury.drafters.confidence import BINS, LEAN, TYPICAL, Confidence, Prices
from augury.engine.adaptive import draft_whole
from augury.engine.budget import FixedBudget
from augury.engine.goodput import GoodputBudget

WORDS = 50
CHANCES = st.lists(st.lists(st.floats(0.05, 0.98), min_size=3, max_size=3), min_size=1, max_size=4)


def scores(probabilities: list[float]) -> torch.Tensor:
    """Scores of lines whose likeliest token has these probabilities, all others being alike."""
    lines = torch.zeros(len(probabilities), WORDS, dtype=torch.float64)
    top = torch.tensor(probabilities, dtype=torch.float64)
    lines[:, 7] = torch.log(top / (1 - top) * (WORDS - 1))
    return lines.float()


def begin(confidence: Confidence, budget: list[int], verified: list[int] | None = None, heat: float = 0.0) -> None:
    groups = len(budget)
    sampling = SimpleNamespace(temperature=torch.full((8,), heat))
    nodes = torch.tensor(verified or [0] * groups)
    inputs: Any = SimpleNamespace(slots=torch.arange(groups), nodes=nodes, sampling=sampling)
    confidence.begin(inputs, torch.tensor(budget))


@settings(max_examples=40)
@given(CHANCES, st.data(), st.floats(0.0, 1.0), st.floats(0.0, 2.0))
def test_a_chain_is_judged_as_a_plain_loop_would(
    chances: list[list[float]], data: st.DataObject, row: float, level: float
) -> None:
    budget = [data.draw(st.integers(0, 3)) for _ in chances]
    confidence = Confidence(8, 3)
    confidence.prices = Prices(row, level)
    begin(confidence, budget)
    reached, kept, ahead = [1.0] * len(chances), [0] * len(chances), [TYPICAL] * 4
    for i in range(3):
        goes_on, gain = confidence.note(scores([line[i] for line in chances]), i), 0.0
        for g, line in enumerate(chances):
            if kept[g] != i or i >= budget[g]:
                continue
            ahead[i] += 0.02 * (line[i] - ahead[i])
            reached[g] *= line[i]
            if reached[g] >= row:
                kept[g] = i + 1
                gain += max(reached[g] * ahead[i + 1] - row, 0.0) if i + 1 < budget[g] else 0.0
        if abs(gain - level) > 1e-5:
            assert goes_on == (gain > level)
    close = any(abs(np.prod(line[: n + 1]) - row) < 1e-5 for line in chances for n in range(3))
    assert close or confidence.finish(at_once=False).tolist() == kept
    assert close or confidence.take_empty() == [g for g, n in enumerate(kept) if budget[g] and not n]


def test_what_a_probability_is_worth_is_learnt_for_greedy_and_drawn_guesses_apart() -> None:
    confidence = Confidence(8, 1)
    confidence.prices = Prices(0.6, 0.0)
    begin(confidence, [1])
    confidence.note(scores([0.45]), 0)
    assert confidence.finish(at_once=False).tolist() == [0]
    for _ in range(30):  # whatever is kept, these guesses come true
        confidence.see(np.array([0]), np.array([1]), np.array([1]))
    for heat, expected in ((0.0, 1), (0.8, 0)):
        begin(confidence, [1], heat=heat)
        confidence.note(scores([0.45]), 0)
        assert confidence.finish(at_once=False).tolist() == [expected]
    assert confidence._records[0, 0, int(0.45 * BINS)] > 4 * LEAN


def test_a_verified_draft_is_learnt_from_though_the_next_is_made_already() -> None:
    confidence = Confidence(8, 2)
    begin(confidence, [2])
    for i in range(2):
        confidence.note(scores([0.9]), i)
    begin(confidence, [2], verified=[2])  # the pass that verifies it drafts, too
    for i in range(2):
        confidence.note(scores([0.3]), i)
    confidence.see(np.array([0]), np.array([2]), np.array([1]))
    assert confidence._records[0, :, int(0.9 * BINS)].tolist() == [2.0, 1.0]
    assert not confidence._records[0, :, int(0.3 * BINS)].any()
    confidence.see(np.array([0]), np.array([2]), np.array([0]))  # as before: no draft has begun since
    begin(confidence, [2])  # after a pass without drafts
    confidence.note(scores([0.6]), 0)
    confidence.see(np.array([0]), np.array([1]), np.array([1]))
    assert confidence._records[0, 1, int(0.6 * BINS)] == 1.0


class Whims(Confidence):
    """Ends chains anywhere."""

    def __init__(self, positions: int) -> None:
        super().__init__(64, positions)
        self.random = np.random.default_rng(0)

    def note(self, logits: torch.Tensor, i: int) -> bool:
        self.prices = Prices(0.0, 0.0)
        super().note(logits, i)
        return bool(self.random.random() < 0.6)


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "draft_model"])
def test_chains_that_end_anywhere_change_no_text(kind: str, toy_model: Path, tmp_path: Path) -> None:
    plain = LLM(str(toy_model), device="cpu", max_model_len=128)
    spec = {"method": kind, "model": str(drafter(toy_model, kind, 1, tmp_path)), "num_speculative_tokens": 3}
    llm = LLM(str(toy_model), device="cpu", max_model_len=128, speculative_config=spec)
    llm.engine.drafter.chain.confidence = Whims(3)  # type: ignore[union-attr]
    held_to_plain(llm, plain, PROMPTS)
    assert llm.engine.stats.spec.num_drafts


def test_a_drafter_that_ends_its_chains_keeps_its_cache_whole(toy_model: Path) -> None:
    """A model that drafts for itself is always right, however far it went before."""
    spec = {"method": "draft_model", "model": str(toy_model), "num_speculative_tokens": 4}
    llm = LLM(str(toy_model), device="cpu", max_model_len=128, speculative_config=spec)
    llm.engine.drafter.chain.confidence = Whims(4)  # type: ignore[union-attr]
    ids(llm, PROMPTS, [SamplingParams(temperature=0.0, max_tokens=33, ignore_eos=True) for _ in PROMPTS])
    found = llm.engine.stats.spec
    assert found.num_accepted_tokens == found.num_draft_tokens > 0
    assert len(set(found.drafted_per_pos)) > 1


def test_where_drafters_are_compared_no_draft_ends_early(toy_model: Path, tmp_path: Path) -> None:
    """A drafter that is unsure of all it guesses would be judged by the few guesses that it keeps."""
    model = str(drafter(toy_model, "eagle3", 1, tmp_path))
    spec = {"method": "eagle3", "model": model, "num_speculative_tokens": 3, "adaptive": True}
    plain = LLM(str(toy_model), device="cpu", max_model_len=128)
    llm = LLM(str(toy_model), device="cpu", max_model_len=128, speculative_config=spec)
    budget, chain = llm.engine.budget, llm.engine.drafter.chain  # type: ignore[union-attr]
    assert isinstance(budget, GoodputBudget) and chain is not None
    assert budget.confidence is chain.confidence is not None
    draft_whole(llm.engine)
    assert budget.confidence is chain.confidence is None
    held_to_plain(llm, plain, PROMPTS)


@pytest.mark.parametrize(("rule", "ends"), [("coupled", True), ("standard", False), ("block", False)])
def test_only_coupled_chains_may_end_by_their_scores(rule: str, ends: bool, toy_model: Path, tmp_path: Path) -> None:
    spec = {
        "method": "eagle3",
        "model": str(drafter(toy_model, "eagle3", 1, tmp_path)),
        "num_speculative_tokens": "auto",
        "rejection_sample_method": rule,
        "draft_sample_method": "probabilistic",
    }
    llm = LLM(str(toy_model), device="cpu", max_model_len=128, speculative_config=spec)
    assert not isinstance(llm.engine.budget, FixedBudget)
    assert (llm.engine.drafter.chain.confidence is not None) == ends  # type: ignore[union-attr]
