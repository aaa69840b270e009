"""Two readings and what they come to: rates, intervals, curves, quantiles and restarts, against counts by hand."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_windows import between, reading
from vllm_text import Engine, later, started

from augury.tools.live.buckets import Buckets
from augury.tools.live.drafting import Drafting, wilson
from augury.tools.live.expectation import band, expect, known_method
from augury.tools.live.facts import live_facts, rise, sentence, trend_facts
from augury.tools.live.window import window


def test_an_interval_is_counted_by_itself() -> None:
    before = started((0.5, 0.25))
    after = replace(before, drafts=41_000, rates=(20_900 / 41_000, 10_800 / 41_000), generated=before.generated + 2700)
    found = between(before, after)
    assert not found.since_start and found.drafting.drafts == 1000 and found.drafting.accepted == 900 + 800
    assert found.drafting.rate == 0.85 and found.drafting.length == 2.7 and found.drafting.marginal == [0.9, 0.8]
    assert found.per_second("drafts") == 100 and found.per_second("generation_tokens") == 270
    assert found.tokens_per_step == pytest.approx(2.7) and found.k == 2


def test_few_drafts_are_judged_since_the_start() -> None:
    before = started((0.5, 0.25))
    found = between(before, later(before, 99))
    assert found.since_start and found.drafting.drafts == 40_099 and found.in_interval.drafts == 99
    assert not between(before, later(before, 100)).since_start


def test_an_idle_server_is_said_to_be_idle() -> None:
    before = started((0.5, 0.25))
    found = between(before, before)
    assert found.idle and found.since_start and found.latencies_since_start and found.per_second("drafts") == 0


@pytest.mark.parametrize("fell", ["generated", "drafts", "queries"])
def test_a_counter_that_fell_is_a_restart_and_never_a_negative_rate(fell: str) -> None:
    before = started((0.5, 0.25))
    found = between(before, replace(before, **{fell: 5}))
    assert found.restarted and found.since_start and found.seconds == 0
    assert found.per_second("drafts") is None and all(value >= 0 for value in found.counted.values())


def test_one_reading_alone_is_since_the_start() -> None:
    found = window(None, reading(started((0.5,)), 1.0))
    assert found.since_start and not found.restarted and found.drafting.rate == 0.5


# --- drafts ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=60))
def test_intervals_follow_the_spread_of_the_drafts(drafts: list[tuple[int, int]]) -> None:
    """Counts by position give mean and variance of accepted tokens a draft exactly."""
    accepted = [min(pair) for pair in drafts]
    at = tuple(float(sum(a > n for a in accepted)) for n in range(6))
    found = Drafting(len(drafts), sum(k for k, _ in drafts), sum(accepted), at)
    mean = sum(accepted) / len(accepted)
    variance = sum((a - mean) ** 2 for a in accepted) / len(accepted)
    assert found.variance == pytest.approx(variance, abs=1e-9)
    assert found.length is not None and found.length_interval is not None and found.rate_interval is not None
    half = 1.96 * math.sqrt(variance / len(accepted))
    assert found.length_interval[1] == pytest.approx(found.length + half)
    assert found.rate_interval[0] - 1e-9 <= found.rate <= found.rate_interval[1] + 1e-9  # type: ignore[operator]


def test_the_rate_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Chains that hang together: the first rejection ends a draft, so tokens of one draft are no independent trials."""
    dice, inside, runs = random.Random(5), 0, 400
    p, k = 0.7, 4
    truth = sum(p ** (n + 1) for n in range(k)) / k
    for _ in range(runs):
        accepted = []
        for _ in range(300):
            accepted.append(next((n for n in range(k) if dice.random() > p), k))
        at = tuple(float(sum(a > n for a in accepted)) for n in range(k))
        low, high = Drafting(300, 300 * k, sum(accepted), at).rate_interval or (1.0, 0.0)
        inside += low <= truth <= high
    assert 0.92 <= inside / runs <= 0.98


def test_wilson_by_hand() -> None:
    low, high = wilson(0.5, 100)
    assert (low, high) == (pytest.approx(0.4038, abs=1e-4), pytest.approx(0.5962, abs=1e-4))
    assert wilson(1.0, 10)[1] == 1.0 and wilson(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("rates", "cliff", "useful"),
    [
        ((0.9, 0.8, 0.7), 0, 3),
        ((0.9, 0.8, 0.2, 0.1), 2, 2),
        ((0.9, 0.3, 0.2), 1, 1),
        ((0.3, 0.2), 0, 0),
        ((0.9, 0.6, 0.41, 0.39), 0, 3),
    ],
)
def test_the_curve_tells_cliffs_and_useful_positions(rates: tuple[float, ...], cliff: int, useful: int) -> None:
    counts = tuple(1000 * rate for rate in rates)
    found = Drafting(1000, 1000 * len(rates), sum(counts), counts)
    assert found.varies is False and found.cliff(found.curve) == cliff and found.useful == useful


def test_chance_is_no_cliff() -> None:
    found = Drafting(25, 75, 22, (20.0, 2.0, 0.0))
    assert found.cliff(found.curve) == 0


def test_drafts_of_different_lengths_are_not_judged_by_all_drafts() -> None:
    """Half the drafts have one token, half have three, and everything that is drafted is accepted."""
    counts = {"drafts": 1000.0, "drafted": 2000.0, "accepted": 2000.0, "accepted_at": (1000.0, 500.0, 500.0)}
    vllm, ours = Drafting(**counts), Drafting(**counts, drafted_at=(1000.0, 500.0, 500.0))  # type: ignore[arg-type]
    assert vllm.varies and vllm.curve is None and vllm.marginal == [1.0, 0.5, 0.5] and vllm.useful is None
    assert vllm.cliff(vllm.marginal) == 1  # what would be believed by vLLM's divisor
    assert ours.curve == [1.0, 1.0, 1.0] and ours.cliff(ours.curve) == 0 and ours.useful == 3


# --- histograms ------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 12), min_size=1, max_size=80), st.floats(0.01, 1.0))
def test_quantiles_lie_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    bounds = (1.0, 2.0, 5.0, 10.0, math.inf)
    found = Buckets({bound: float(sum(v <= bound for v in values)) for bound in bounds}, sum(values))
    true = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    upper = next(bound for bound in bounds if true <= bound)
    lower = max([0.0, *(bound for bound in bounds if bound < upper)])
    quantile = found.quantile(share)
    assert quantile is not None and found.mean == pytest.approx(sum(values) / len(values))
    assert lower - 1e-9 <= quantile <= (10.0 if math.isinf(upper) else upper) + 1e-9


def test_quantiles_interpolate_as_prometheus_does() -> None:
    found = Buckets({1.0: 10.0, 2.0: 30.0, math.inf: 40.0}, 50.0)
    assert found.quantile(0.5) == 1.5 and found.quantile(0.99) == 2.0 and Buckets({}, 0.0).quantile(0.5) is None


def test_latencies_are_those_of_the_interval() -> None:
    before = started((0.9,), token_ms=12.0)
    after = later(before, 500, slow=0)
    found = between(before, after)
    assert found.histograms["tpot"].count == 30 and found.latency("tpot") == pytest.approx(0.012)
    assert not found.latencies_since_start


# --- what it is held against -----------------------------------------------------------------------------------------


def test_the_server_knows_its_method_best() -> None:
    found = between(started((0.9, 0.8, 0.7)), later(started((0.9, 0.8, 0.7)), 500))
    assert expect(found, None, None, None, {}).rate is None
    named = expect(found, "eagle3", None, None, {"method": "ngram"})
    assert named.rate == (0.46, 0.7) and named.named_by == "--method" and named.k == 3
    told = window(None, replace(found.after, method="suffix"))
    assert expect(told, "eagle3", None, None, {}).method == "suffix"
    assert expect(found, None, None, None, {"method": "ngram"}).named_by == "the configuration"


def test_a_length_that_k_cannot_reach_is_no_band() -> None:
    small = between(started((0.9,)), later(started((0.9,)), 500))
    assert (expect(small, "eagle3", None, None, {}).length or (9, 9))[1] < 2
    assert expect(small, "eagle3", None, None, {}).length_floor == 1.5


@pytest.mark.parametrize("wrong", ["0.5", "0.9,0.5", "a,b", "75,92", "nan,nan"])
def test_bands_are_two_shares(wrong: str) -> None:
    with pytest.raises(ValueError, match="--band"):
        band(wrong)
    assert band("0.4,0.6") == (0.4, 0.6) and known_method("deepseek_mtp") == "mtp"


# --- facts -----------------------------------------------------------------------------------------------------------


def facts(before: Engine, after: Engine, method: str | None = None) -> dict[str, Any]:
    found = between(before, after)
    return live_facts(found, expect(found, method, None, None, {}))


def test_facts_of_a_healthy_server() -> None:
    healthy = started((0.92, 0.83, 0.74))
    found = facts(healthy, later(healthy, 2000), "eagle3")
    assert found["acceptance_rate"] == pytest.approx(0.83) and found["acceptance_length"] == pytest.approx(3.49)
    assert found["cliff"] == 0 and found["useful_k"] == 3 and found["varying_lengths"] is False
    assert found["drafted_share"] == pytest.approx(1.0) and found["length_floor"] == 2.0


def test_a_speed_up_over_the_tokens_a_step_is_not_believed() -> None:
    engine = started((0.5,))
    before, after = reading(engine, 0.0), reading(later(engine, 500), 10.0)
    for told, believed in ((1.4, 1.4), (3.0, None)):
        found = window(before, replace(after, speed_up=told))
        assert live_facts(found, expect(found, None, None, None, {})).get("speed_up") == believed


def test_falling_acceptance_shows_against_all_that_came_before() -> None:
    good = started((0.9, 0.8, 0.7), drafts=100_000)
    bad = replace(good, drafts=102_000, rates=tuple((100_000 * r + 2000 * 0.3) / 102_000 for r in good.rates))
    found = between(good, bad)
    assert trend_facts([], found)["acceptance_falling"] is True
    assert trend_facts([], between(good, later(good, 2000)))["acceptance_falling"] is False


def test_queues_grow_over_several_readings() -> None:
    engine = started((0.9,))
    trail = [reading(replace(engine, waiting=w), float(w)) for w in (0, 2, 5, 7, 11, 14)]
    found = trend_facts(trail, window(trail[0], trail[-1]))
    assert found["queue_growing"] is True and found["kv_usage_rising"] is False
    assert rise([1.0]) is None and rise([1, 1, 1, 4, 4, 4]) == 3


def test_sentences_show_what_is_not_known_as_a_question_mark() -> None:
    assert sentence("{acceptance_rate} at {running}, {k}", {"acceptance_rate": 0.123, "k": 3}) == "0.12 at ?, 3"
