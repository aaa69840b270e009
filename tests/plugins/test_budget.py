"""What a request or the environment says reaches the scheduler as a number of tokens, or not at all."""

from __future__ import annotations

import logging
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import vllm_modules

from augury.plugins.vllm.allowance import asked, row_cost


def said(value: Any) -> SimpleNamespace:
    return SimpleNamespace(extra_args={"num_speculative_tokens": value})


@pytest.mark.parametrize(
    "value, tokens",
    [(0, 0), (2, 2), (9, 3), (-5, 0), (2.9, 2), ("2", 2), ("0", 0), (1e309, 3), (-1e309, 0), (10**400, 3)],
    ids=lambda value: str(value)[:9],
)
def test_numbers_are_taken_as_far_as_the_server_drafts(value: Any, tokens: int) -> None:
    assert asked(said(value), 3) == tokens


@pytest.mark.parametrize(
    "value", ["abc", "", "-1", "1e3", "9" * 5000, "٣", True, False, None, float("nan"), [1], [], {"a": 1}, b"2"]
)
def test_everything_else_is_passed_over(value: Any) -> None:
    assert asked(said(value), 3) is None


@pytest.mark.parametrize(
    "params", [None, SimpleNamespace(), SimpleNamespace(extra_args=None), SimpleNamespace(extra_args=[1])]
)
def test_requests_that_say_nothing(params: Any) -> None:
    assert asked(params, 3) is None


@pytest.mark.parametrize("text, cost", [(None, 0.0), ("", 0.0), ("0.02", 0.02), ("0", 0.0)])
def test_a_cost_is_read(text: str | None, cost: float) -> None:
    assert row_cost(text) == cost


@pytest.mark.parametrize("text", ["abc", "nan", "inf", "-0.1", "1e999", "0,02"])
def test_no_cost_is_said_and_free(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "vllm.augury"):
        assert row_cost(text) == 0.0
    assert f"AUGURY_ROW_COST={text}" in caplog.text and "0.02" in caplog.text


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delenv("AUGURY_ROW_COST", raising=False)
    vllm_modules.put(monkeypatch)
    import augury.plugins.vllm.budget

    return augury.plugins.vllm.budget


@pytest.mark.parametrize(
    "name, other", [("BudgetScheduler", "SyncBudgetScheduler"), ("SyncBudgetScheduler", "BudgetScheduler")]
)
def test_the_wrong_class_names_the_right_one(budget: ModuleType, name: str, other: str) -> None:
    fits = name == "BudgetScheduler"
    getattr(budget, name)(fits)
    with pytest.raises(ValueError, match=rf"budget\.{other} instead of {name}"):
        getattr(budget, name)(not fits)
    with pytest.raises(ValueError, match="diffusion"):
        getattr(budget, name)(fits, per_step=0)


def test_hostile_requests_stand_beside_others(budget: ModuleType) -> None:
    made = budget.SyncBudgetScheduler(False)
    values: dict[str, Any] = {"a": "abc", "b": 1, "c": [9], "d": 1e309}
    made.requests = {name: SimpleNamespace(request_id=name, sampling_params=said(v)) for name, v in values.items()}
    given = SimpleNamespace(req_ids=[*"abcdx"], draft_token_ids=[[5, 6, 7] for _ in range(5)])
    made.update_draft_token_ids(given)
    assert [len(draft) for draft in given.draft_token_ids] == [3, 1, 3, 3, 3]


def test_steps_without_samples_teach_nothing(budget: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUGURY_ROW_COST", "0.1")
    made = budget.SyncBudgetScheduler(False)
    made.requests = {"a": SimpleNamespace(request_id="a", sampling_params=None)}
    output = SimpleNamespace(scheduled_spec_decode_tokens={"a": [1, 2, 3]}, num_invalid_spec_tokens={"a": 2})
    for sampled in ([], [[]]):
        assert (
            made.update_from_output(output, SimpleNamespace(req_id_to_index={"a": 0}, sampled_token_ids=sampled))
            == "theirs"
        )
    assert made._known == {}
    made.update_from_output(output, SimpleNamespace(req_id_to_index={"a": 0}, sampled_token_ids=[[4]]))
    assert made._known["a"].odds == pytest.approx([0.9, 1.0, 1.0])
