"""`augury certify` of a model: honest rules pass, a lossy one and bent scores are found out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certifying import augury, check_page
from hypothesis import settings
from shipped import SHIPPED_EAGLE3

from augury.engine.judge import Judge
from augury.tools.certify.report import ComparisonReport

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=80)


@pytest.fixture(scope="module")
def shallow(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from shallow import shallow_copy

    return shallow_copy(toy_model, [0], tmp_path_factory.mktemp("shallow"))


def speculation(shallow: Path, rule: str, tokens: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "method": "draft_model",
        "model": str(shallow),
        "num_speculative_tokens": tokens,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": rule,
        **more,
    }


def load(model: Path, **more: Any) -> Any:
    from augury import LLM

    return LLM(str(model), device="cpu", dtype="float32", max_model_len=128, max_num_seqs=64, **more)


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> Any:
    return load(toy_model)


def compare(plain: Any, fast: Any, **amounts: Any) -> ComparisonReport:
    from augury.tools.certify.model import ModelPlan, certify_model

    return certify_model(plain, fast, ModelPlan(["abcabcabc", "hello hello", "z"], **{"max_tokens": 12, **amounts}))


def test_coupled_is_token_for_token(plain: Any, toy_model: Path, shallow: Path) -> None:
    report = compare(plain, load(toy_model, speculative_config=speculation(shallow, "coupled")))
    assert report.exit_code == 0 and report.law is None
    assert [(e.answers, e.equal) for e in report.equalities] == [(3, 3), (6, 6), (6, 6)]
    assert report.acceptance and report.acceptance["num_accepted_tokens"] > 0
    assert len(report.acceptance["per_position"]) == 2


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_rejection_rules_keep_the_law(rule: str, plain: Any, toy_model: Path, shallow: Path) -> None:
    fast = load(toy_model, speculative_config=speculation(shallow, rule))
    report = compare(plain, fast, samples=400)
    assert report.exit_code == 0, report.law
    assert [e.setting for e in report.equalities] == ["greedy"] and report.law
    assert {place.depth for place in report.law.places} >= {0, 1, 2}
    assert {place.setting for place in report.law.places} == {"T=0.7", "T=1 top-p penalties"}
    assert all(place.outside == 0 for place in report.law.places)
    assert report.law.finds(report.law.together) < 0.15


def test_a_lossy_rule_is_found_out(plain: Any, toy_model: Path, shallow: Path) -> None:
    fast = load(toy_model, speculative_config=speculation(shallow, "typical"))
    report = compare(plain, fast, samples=300)
    assert report.exit_code == 1 and report.law and not report.law.holds
    assert all(place.depth > 0 for place, p in zip(report.law.places, report.law.adjusted, strict=False) if p < 0.01)
    assert any("LOSSY" in note for note in report.notes)


def bend(llm: Any, change: Callable[[Any], None]) -> None:
    """Change the target's logits in place, in every pass."""
    forward = llm.engine.target.forward

    def bent(*args: Any, **extra: Any) -> Any:
        scores = forward(*args, **extra)
        change(scores.logits)
        return scores

    llm.engine.target.forward = bent


def runner_up(logits: Any, distance: float) -> None:
    top, ids = logits.topk(2, dim=1)
    logits.scatter_(1, ids[:, 1:], top[:, :1] + distance)


def test_a_near_tie_is_reported_as_one(toy_model: Path, shallow: Path) -> None:
    plain, fast = load(toy_model), load(toy_model, speculative_config=speculation(shallow, "coupled"))
    bend(plain, lambda logits: runner_up(logits, -4e-6))
    bend(fast, lambda logits: runner_up(logits, 4e-6))
    report = compare(plain, fast)
    greedy = report.equalities[0]
    assert greedy.equal == 0 and greedy.holds
    for found in greedy.differences:
        assert found.position == 0 and found.near_tie
        assert found.gap == pytest.approx(4e-6, abs=2e-6) and found.apart == pytest.approx(8e-6, abs=4e-6)
        assert None is not found.plain_id != found.drafted_id and "float32 steps" in found.bound_is
        assert found.plain_run and found.drafted_run
        assert found.plain_run.plain > found.plain_run.drafted and found.drafted_run.plain < found.drafted_run.drafted
    from augury.tools.certify.screen import difference_line

    assert "a near-tie, within rounding" in difference_line(greedy.differences[0])


def test_a_wrong_score_is_no_near_tie(plain: Any, toy_model: Path, shallow: Path) -> None:
    import torch

    fast = load(toy_model, speculative_config=speculation(shallow, "coupled"))
    wave = torch.linspace(0, 40, 260).sin()
    bend(fast, lambda logits: logits.add_(wave[: logits.shape[1]]))
    report = compare(plain, fast)
    assert report.exit_code == 1
    differences = [found for equality in report.equalities for found in equality.differences]
    assert len(differences) > 5 and not any(found.near_tie for found in differences)
    assert all(found.apart and found.apart > 100 * found.bound for found in differences)


def test_another_choice_on_the_same_scores_is_no_near_tie(plain: Any, toy_model: Path, shallow: Path) -> None:
    """A sampler that goes wrong now and then has no rounding to hide behind."""
    fast = load(toy_model, speculative_config=speculation(shallow, "coupled"))
    real = fast.engine.runner.judge

    def judge(logits: Any, layout: Any, sampling: Any, slots: Any) -> Any:
        outcome = real(logits, layout, sampling, slots)
        outcome.emitted.copy_((outcome.emitted + (outcome.emitted >= 0)).clamp(max=255))
        return outcome

    fast.engine.runner.judge = Judge(judge)
    report = compare(plain, fast, max_tokens=2, seeds=1)
    first = [found for equality in report.equalities for found in equality.differences if found.position == 0]
    assert report.exit_code == 1 and first
    assert all(found.apart == 0 and not found.near_tie for found in first)


def test_model_on_the_command_line(toy_model: Path, shallow: Path, tmp_path: Path) -> None:
    page, prompts = tmp_path / "page.html", tmp_path / "prompts.txt"
    prompts.write_text("abcabc\nhello\n")
    config = json.dumps(speculation(shallow, "standard"))
    words = ["--model", str(toy_model), "-sc", config, "--prompts", str(prompts), "--html", str(page)]
    few = ["--samples", "300", "--max-tokens", "6", "--temperature", "0", "--temperature", "0.5", "--batch", "64"]
    result = augury(*words, *few, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["verdict"] == "holds" and record["conditions"]["rule"] == "standard"
    assert record["conditions"]["samples"] == 300 and record["conditions"]["prompts"] == 2
    tests = record["distribution"]
    assert tests["correction"] == "Holm" and tests["power"] == 0.9 and tests["tests"] == len(tests["places"]) + 1
    assert all(0 < place["detectable_total_variation"] <= 1 for place in tests["places"])
    check_page(page, "standard", "observed share", "position in the draft")


EMBEDDED = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 32}


@pytest.fixture(scope="module")
def embedded(default_model: Path) -> Any:
    from augury import LLM

    return LLM(str(default_model), **EMBEDDED)


@pytest.mark.slow
def test_embedded_model_token_for_token(embedded: Any, default_model: Path, tmp_path: Path) -> None:
    from shallow import shallow_copy

    from augury import LLM
    from augury.tools.certify.model import ModelPlan, certify_model
    from augury.tools.certify.prompts import PROMPTS
    from augury.tools.certify.settings import SETTINGS

    weak = shallow_copy(default_model, [0, 1, 2, 28, 29], tmp_path / "weak")
    spec = speculation(weak, "coupled", tokens=3)
    fast = LLM(str(default_model), **EMBEDDED, weights_of=embedded, speculative_config=spec)
    report = certify_model(embedded, fast, ModelPlan(PROMPTS[:2], SETTINGS[:2], max_tokens=16))
    assert report.exit_code == 0, report.record()


@pytest.mark.slow
def test_the_law_of_the_embedded_model(embedded: Any, default_model: Path) -> None:
    """A law of 49,152 tokens, drafted by the head that is shipped.

    The first token of an answer is drawn before anything is drafted, so the prompt is one after which most answers
    begin alike: the law is looked at where drafts are judged, too.
    """
    from augury import LLM
    from augury.tools.certify.model import ModelPlan, certify_model
    from augury.tools.certify.settings import SETTINGS

    spec = speculation(SHIPPED_EAGLE3, "block", tokens=3, method="eagle3")
    fast = LLM(str(default_model), **EMBEDDED, weights_of=embedded, speculative_config=spec)
    samples = 500 if "AUGURY_TEST_FULL" in os.environ else 150
    plan = ModelPlan(["Name a primary colour."], SETTINGS[:2], max_tokens=16, samples=samples)
    report = certify_model(embedded, fast, plan)
    assert report.exit_code == 0 and report.law and report.acceptance, report.record()
    assert any(place.depth > 0 for place in report.law.places)
    assert 0 < report.acceptance["num_accepted_tokens"] < report.acceptance["num_draft_tokens"]
