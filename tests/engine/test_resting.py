"""A captured drafter that rests: what it reads later is what it would have read at once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import resting
import torch
from eagle_cases import eagle3_module, write_eagle3

from augury.config.per_request import SpecOptions
from augury.engine import aside
from augury.engine.aside import Aside, draft_depths
from augury.engine.cost import DepthCost, RowCost
from augury.engine.goodput import Costs, GoodputBudget, share_out
from augury.engine.graph_cost import captured_costs
from augury.engine.rows import row_sizes
from augury.observe.steps import Step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "LINES", 4)


def spec_of(model: Path, method: str, directory: Path) -> dict[str, Any]:
    if method == "eagle3":
        write_eagle3(directory, eagle3_module(), eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    drafter = directory if method == "eagle3" else model
    spec = {"method": method, "model": str(drafter), "num_speculative_tokens": resting.K, "adaptive": DEVICE == "cuda"}
    return {"speculative_config": spec}


def runs(model: Path, method: str, directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    spec = spec_of(model, method, directory)
    rested, read = (resting.run(str(model), DEVICE, spec, rests) for rests in (True, False))
    return rested, read


@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
def test_every_graph_is_timed(toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    runner = resting.engine_of(str(toy_model), DEVICE, spec_of(toy_model, method, tmp_path)).engine.runner
    costs, waking = captured_costs(runner, 2)
    assert costs.target.sizes.tolist() == [1, 2, 3, 4, 6]  # of one request and of two, with 0, 1 and 2 drafts each
    assert costs.target.at(1)[0].tolist() == [1, 2, 3] and costs.target.at(2)[0].tolist() == [2, 4, 6]
    assert (costs.target.seconds > 0).all() and waking > 0
    assert costs.drafting(np.array([0.0]), 2) == 0 and (costs.drafting(np.array([1.0, 2.0]), 2) >= 0).all()


@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
def test_what_is_read_later_is_what_would_have_been_read(toy_model: Path, tmp_path: Path, method: str) -> None:
    rested, read = runs(toy_model, method, tmp_path)
    assert rested["said"] == read["said"]
    assert rested["rested"] > 20 and not read["rested"]
    common = [text for text in rested["drafts"] if text in read["drafts"]]
    assert len(common) > 10
    for text in common:
        guesses, cache = rested["drafts"][text]
        assert guesses == read["drafts"][text][0]
        np.testing.assert_allclose(cache, read["drafts"][text][1], atol=2e-3 if DEVICE == "cpu" else 0.05)


@pytest.mark.parametrize("broken", ["_read", "settle"])
def test_a_drafter_that_never_caught_up_would_be_found(
    toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(Aside, broken, lambda *given: None)
    rested, read = runs(toy_model, "eagle3", tmp_path)
    assert rested["said"] == read["said"]  # no text depends on it
    assert any(rested["drafts"][text] != read["drafts"][text] for text in rested["drafts"] if text in read["drafts"])


def test_graphs_are_few_and_hold_every_draft() -> None:
    assert draft_depths(3, at_once=False) == (0, 1, 3)
    assert draft_depths(7, at_once=False) == (0, 1, 3, 5, 7)
    assert draft_depths(7, at_once=True) == (0, 7)
    for groups, nodes in ((1, 3), (32, 5), (64, 12)):
        sizes = row_sizes(groups, nodes, draft_depths(nodes, at_once=False))
        assert sizes[0] == groups and sizes[-1] >= groups * (1 + nodes)
        assert sizes == sorted(set(sizes))


def graphs(requests: int) -> list[int]:
    return row_sizes(requests, 3, (0, 1, 3))


def test_a_pass_costs_what_its_graph_does() -> None:
    costs = RowCost({8: 1.0, 12: 1.1, 16: 1.2, 32: 2.0}, graphs)
    assert costs.of(9) == 1.1  # of some pass
    assert costs.of(9, requests=8) == 1.2  # eight requests decode in graphs of 8, 16 and 32 rows
    assert costs.of(17, requests=8) == 2.0


def test_depths_cost_what_the_next_graph_does() -> None:
    drafting = DepthCost((0, 1, 3), [1, 8], np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]]))
    assert drafting(np.array([0.0, 1.0, 2.0, 3.0]), 1).tolist() == [0.0, 1.0, 3.0, 3.0]
    assert drafting(np.array([2.0]), 5).tolist() == [4.0]
    assert drafting(np.array([2.0]), 500).tolist() == [4.0]


def captured(row: float, level: float) -> Costs:
    rows = RowCost({8: 1.0, 16: 1.0 + 8 * row, 32: 1.0 + 24 * row}, graphs)
    return Costs(rows, DepthCost((0, 1, 3), [8], level * np.array([[0.0], [1.0], [3.0]])))


def test_what_a_captured_drafter_takes_decides_how_deep_it_goes() -> None:
    reach = np.tile(0.7 ** np.arange(1, 4), (8, 1))
    assert share_out(reach, 8, captured(0.01, 0.01), 8).tolist() == [3] * 8
    assert share_out(reach, 8, captured(0.01, 0.9), 8).tolist() == [0] * 8
    assert share_out(reach, 8, captured(0.04, 0.05), 8).tolist() == [1] * 8


def test_a_captured_drafters_part_is_taken_off_its_pass() -> None:
    costs = captured(0.01, 0.1)
    budget = GoodputBudget(3, 8, costs)
    before = costs.target.of(16)
    for _ in range(20):
        budget.learn(Step(8, 16, 0, 3, 0.0, seconds=before + 0.3))
    assert costs.target.of(16) == pytest.approx(before, rel=0.01)
    assert budget.costs.of_drafter(Step(8, 16, 0, 0, 0.0, seconds=1.0)) is None


def test_drafts_must_repay_an_awakening() -> None:
    class Certain:
        def reach(self, slots: np.ndarray) -> np.ndarray:
            return np.tile(0.3 ** np.arange(1, 4), (len(slots), 1))

    def allowed(waking: float) -> list[list[int]]:
        budget = GoodputBudget(3, 8, captured(0.03, 0.01), waking=waking, slice_every=0)
        budget.odds = Certain()  # type: ignore[assignment]
        requests = [SimpleNamespace(slot=slot, spec_options=SpecOptions()) for slot in range(8)]
        awake, found = budget.allow(requests, 8), list[list[int]]()  # type: ignore[arg-type]
        for asleep in (True, False):
            budget._asleep, budget._news = asleep, True
            found.append(budget.allow(requests, 8))  # type: ignore[arg-type]
        return [awake, *found]

    assert allowed(0.0) == [[1] * 8] * 3  # 1.3 tokens for 1.25 passes
    assert allowed(10.0) == [[0] * 8, [0] * 8, [1] * 8]
