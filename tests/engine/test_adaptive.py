"""Speculation that adapts: rows go where they pay, a drafter that rests loses nothing, and no text changes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from generating import PROMPTS, held_to_plain
from random_drafters import KINDS, drafter

from augury import LLM, SamplingParams
from augury.engine.backlog import Backlog
from augury.engine.budget import FixedBudget
from augury.engine.cost import DraftCost, RowCost
from augury.engine.goodput import Costs, GoodputBudget
from augury.engine.request import Request
from augury.methods.registry import METHODS


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device="cpu", max_model_len=128)


class Rows(RowCost):
    """What rows cost, whatever passes take."""

    def learn(self, rows: int, seconds: float) -> None:
        pass


class Levels(DraftCost):
    """What drafting costs, whatever it takes."""

    def learn(self, depth: int, requests: int, seconds: float) -> None:
        pass


def with_cheap_drafts(llm: LLM) -> None:
    """Drafts cost little whatever the machine: how much is drafted no longer depends on who else works on it."""
    assert isinstance(llm.engine.budget, GoodputBudget)
    llm.engine.budget.costs = Costs(Rows({1: 1.0, 64: 1.2}), Levels(0.01))


class InTurns(FixedBudget):
    """Drafts for some steps, rests for some, and so on."""

    def __init__(self, nodes: int, drafting: int, resting: int) -> None:
        super().__init__(nodes)
        self.drafting, self.period, self.steps = drafting, drafting + resting, 0

    def allow(self, requests: list[Request], rows: int) -> list[int]:
        self.steps += 1
        return [self.nodes if self.steps % self.period < self.drafting else 0] * len(requests)


def engine(toy_model: Path, kind: str, directory: Path, **settings: Any) -> LLM:
    method = next(card.name for card in METHODS.values() if kind in card.trained)
    spec = {"method": method, "model": str(directory), "num_speculative_tokens": 3, **settings}
    return LLM(str(toy_model), device="cpu", max_model_len=128, speculative_config=spec)


def drafted(llm: LLM, resting: int) -> tuple[list[list[int]], list[Any], int]:
    """All that is drafted while the drafter works in turns, the answers, and how often the drafter was called."""
    llm.engine.budget = InTurns(3, 2, resting)
    mine: Any = llm.engine.drafter
    propose, made, calls = type(mine).propose, [], 0

    def watched(inputs: Any) -> Any:
        nonlocal calls
        draft, calls = propose(mine, inputs), calls + 1
        if int(draft.count.max()):
            made.append([line[:count] for line, count in zip(draft.tokens.tolist(), draft.count.tolist(), strict=True)])
        return draft

    mine.propose = watched
    prompts = [{"prompt_token_ids": [65 + i, 66, 67 + i]} for i in range(3)]
    params = [SamplingParams(temperature=0.0, max_tokens=60 + 9 * i, ignore_eos=True) for i in range(3)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    del mine.propose
    return made, [output.outputs[0].token_ids for output in outputs], calls


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_that_rested_drafts_as_one_that_read_on(kind: str, toy_model: Path, tmp_path: Path) -> None:
    llm = engine(toy_model, kind, drafter(toy_model, kind, 1, tmp_path))
    reading, text, often = drafted(llm, resting=5)
    llm.engine.runner.backlog = Backlog(llm.engine.state.padding_slot)
    rested, same_text, seldom = drafted(llm, resting=5)
    assert (rested, same_text) == (reading, text)
    assert seldom < often


def test_what_is_put_aside_is_bounded(toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augury.engine.backlog.MOST", 64)
    llm = engine(toy_model, "eagle3", drafter(toy_model, "eagle3", 1, tmp_path))
    reading, text, _ = drafted(llm, resting=1000)
    backlog = llm.engine.runner.backlog = Backlog(llm.engine.state.padding_slot)
    largest, add = 0, backlog.put_aside

    def watched(inputs: Any) -> None:
        nonlocal largest
        add(inputs)
        largest = max(largest, *backlog._waiting.values())

    backlog.put_aside = watched  # type: ignore[method-assign]
    assert drafted(llm, resting=1000)[:2] == (reading, text)
    assert largest == 64


@pytest.mark.parametrize("kind", ["eagle3", "draft_model"])
def test_the_next_turn_finds_all_of_the_drafters_cache(kind: str, toy_model: Path, tmp_path: Path) -> None:
    """A turn is answered without drafts; the next shares its blocks, and drafts as if nobody had rested."""

    def second_turn(llm: LLM) -> list[int]:
        first, second = (SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (50, 9))
        llm.engine.budget = FixedBudget(0)
        said = llm.generate({"prompt_token_ids": [65, 66, 67]}, first, use_tqdm=False)[0].outputs[0].token_ids
        llm.engine.budget = FixedBudget(3)
        tokens = {"prompt_token_ids": [65, 66, 67, *said]}
        output = llm.generate(tokens, second, use_tqdm=False)[0]
        assert output.num_cached_tokens == 48
        return [llm.engine.stats.spec.num_draft_tokens, llm.engine.stats.spec.num_accepted_tokens, *first_draft]

    first_draft: list[int] = []
    made = drafter(toy_model, kind, 1, tmp_path)
    told = []
    for rests in (False, True):
        llm, first_draft = engine(toy_model, kind, made), []
        if rests:
            llm.engine.runner.backlog = Backlog(llm.engine.state.padding_slot)
        mine: Any = llm.engine.drafter
        propose = type(mine).propose

        def watched(inputs: Any, mine: Any = mine, propose: Any = propose, kept: list[int] = first_draft) -> Any:
            draft = propose(mine, inputs)
            kept.extend(draft.tokens[0, : int(draft.count[0])].tolist())
            return draft

        mine.propose = watched
        told.append(second_turn(llm))
    assert told[0] == told[1]
    assert len(told[0]) > 5


LOOK_UPS: list[dict[str, Any]] = [
    {"method": "ngram", "prompt_lookup_max": 3},
    {"method": "suffix"},
    {"method": "hybrid", "drafters": [{"method": "ngram", "prompt_lookup_max": 3}, {"method": "suffix"}]},
]


@pytest.mark.parametrize("spec", LOOK_UPS, ids=lambda spec: spec["method"])
def test_a_look_up_that_adapts_changes_no_text(spec: dict[str, Any], toy_model: Path, plain: LLM) -> None:
    spec = {**spec, "num_speculative_tokens": "auto"}
    llm = LLM(str(toy_model), device="cpu", max_model_len=128, speculative_config=spec)
    with_cheap_drafts(llm)
    held_to_plain(llm, plain, PROMPTS)
    assert llm.engine.stats.spec.num_drafts


def test_a_pass_that_nothing_can_be_learnt_from_is_not_run_again(
    toy_model: Path, plain: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    llm = LLM(str(toy_model), device="cpu", max_model_len=128, speculative_config={**LOOK_UPS[0], "adaptive": True})
    with_cheap_drafts(llm)
    budget: Any = llm.engine.budget
    learn, passes = budget.learn, itertools.count(1)

    def fails_at_times(step: Any) -> None:
        learn(step)
        if next(passes) % 5 == 0:
            raise ValueError("a clock that ran backwards")

    monkeypatch.setattr(budget, "learn", fails_at_times)
    held_to_plain(llm, plain, PROMPTS)
    assert "generated text is not affected" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_adapts_changes_no_text(kind: str, toy_model: Path, plain: LLM, tmp_path: Path) -> None:
    llm = engine(toy_model, kind, drafter(toy_model, kind, 1, tmp_path), adaptive=True)
    with_cheap_drafts(llm)
    assert llm.engine.runner.backlog is not None
    held_to_plain(llm, plain, PROMPTS)
    assert llm.engine.stats.spec.num_drafts
