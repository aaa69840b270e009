"""The statistics of `augury certify` against printed tables, and what they count."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.config.sampling import SamplingParams
from augury.tools.certify import statistics as stats
from augury.tools.certify.law import plain_law
from augury.tools.certify.places import beginnings, judge
from augury.tools.certify.report import ComparisonReport, Difference, Equality, first_difference
from augury.tools.certify.statistics import CountCell

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=80)


@pytest.mark.parametrize(
    ("x", "df", "p"),
    [  # from printed tables of the chi-square distribution
        (3.841, 1, 0.05),
        (6.635, 1, 0.01),
        (10.828, 1, 0.001),
        (5.991, 2, 0.05),
        (18.307, 10, 0.05),
        (29.588, 10, 0.001),
        (3.940, 10, 0.95),
        (43.773, 30, 0.05),
        (124.342, 100, 0.05),
        (77.929, 100, 0.95),
    ],
)
def test_chi_square_is_the_tables(x: float, df: int, p: float) -> None:
    assert stats.chi2_survival(x, df) == pytest.approx(p, rel=2e-3)
    assert stats.chi2_critical(p, df) == pytest.approx(x, abs=6e-4)


@REPEATABLE
@given(st.integers(1, 60), st.floats(1e-6, 200))
def test_incomplete_gamma_is_a_poisson_sum(a: int, x: float) -> None:
    terms = [math.exp(k * math.log(x) - x - math.lgamma(k + 1)) for k in range(a)]
    assert stats.gamma_upper(a, x) == pytest.approx(math.fsum(terms), rel=1e-11, abs=1e-15)


@REPEATABLE
@given(st.floats(1e-6, 25))
def test_one_degree_of_freedom_is_the_normal_law(z: float) -> None:
    assert stats.chi2_survival(z * z, 1) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-9)


@pytest.mark.parametrize(
    ("alpha", "df", "power", "shift"),  # published noncentralities
    [(0.05, 1, 0.8, 7.849), (0.05, 1, 0.9, 10.507), (0.05, 4, 0.9, 15.405), (0.01, 1, 0.9, 14.879)],
)
def test_power_is_the_tables(alpha: float, df: int, power: float, shift: float) -> None:
    assert stats.detectable_shift(alpha, df, power) == pytest.approx(shift, abs=1e-3)
    critical = stats.chi2_critical(alpha, df)
    assert stats.noncentral_survival(critical, df, 0.0) == pytest.approx(alpha)
    assert stats.noncentral_survival(critical, df, shift) == pytest.approx(power, abs=1e-4)


def test_statistics_of_a_die() -> None:
    rolls = {1: 22, 2: 24, 3: 38, 4: 30, 5: 46, 6: 44}
    cells, fit = stats.against_law(rolls, dict.fromkeys(rolls, 1 / 6))
    assert (len(cells), fit.df, fit.size) == (6, 5, 204)
    assert fit.pearson == pytest.approx(260 / 17)
    g = 2 * sum(n * math.log(n / 34) for n in rolls.values())
    assert fit.statistic == pytest.approx(g / (1 + 35 / (6 * 204 * 5)))
    assert fit.p == pytest.approx(0.0085, abs=4e-4)


def test_two_samples_are_a_table_of_two_rows() -> None:
    cells, fit = stats.against_samples({"a": 30, "b": 70}, {"a": 50, "b": 50})
    assert fit.df == 1
    assert fit.pearson == pytest.approx(100 * 100 * 200 * 0.2**2 / (80 * 120))  # n (ad - bc)^2 over the margins
    assert fit.size == 50
    assert {cell.label: cell.expected for cell in cells} == pytest.approx({"a": 40, "b": 60})
    swapped = stats.against_samples({"a": 50, "b": 50}, {"a": 30, "b": 70})[1]
    assert swapped.statistic == pytest.approx(fit.statistic)


def test_holm() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([]) == []
    assert stats.holm([0.7, 0.9]) == [1.0, 1.0]


@REPEATABLE
@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 40)), min_size=1, max_size=20))
def test_merging_loses_nothing(pairs: list[tuple[int, float]]) -> None:
    cells = [CountCell(i, o, e) for i, (o, e) in enumerate(pairs)]
    whole = stats.merged(cells)
    assert sum(c.observed for c in whole) == sum(c.observed for c in cells)
    assert sum(c.expected for c in whole) == pytest.approx(sum(c.expected for c in cells))
    assert len(whole) == 1 or all(cell.expected >= stats.LEAST_EXPECTED for cell in whole)
    assert sum(cell.label is None for cell in whole) <= 1


def test_what_cannot_be_is_found() -> None:
    assert stats.against_law({"a": 500, "b": 500}, {"a": 0.5, "b": 0.5})[1].p > 0.9
    assert stats.against_law({"a": 450, "b": 450, "z": 100}, {"a": 0.5, "b": 0.5})[1].p == 0.0
    edge = {"a": 0.5, "b": 0.5, "z": 0.0}  # named, but without probability: it joins the rarest
    assert stats.against_law({"a": 450, "b": 549, "z": 1}, edge)[1].p > 1e-3
    assert stats.against_law({"a": 400, "b": 400, "z": 200}, edge)[1].p < 1e-6
    assert stats.against_law({"z": 3}, {})[1].p == 0.0
    assert stats.against_law({"a": 3}, {"a": 1.0})[1].p == 1.0  # nothing to say
    assert stats.against_samples({"a": 9}, {})[1].p == 1.0


def random_law(rng: np.random.Generator, tokens: int) -> np.ndarray:
    return rng.dirichlet(np.full(tokens, 0.2))


def counted(values: np.ndarray) -> dict[int, int]:
    return {i: int(n) for i, n in enumerate(values) if n}


def test_false_alarms_are_as_rare_as_stated() -> None:
    rng = np.random.default_rng(0)
    law, few = random_law(rng, 120), []
    for _ in range(1500):
        one, other = rng.multinomial(400, law), rng.multinomial(700, law)
        few.append(
            (
                stats.against_law(counted(one), dict(enumerate(law)))[1].p,
                stats.against_samples(counted(one), counted(other))[1].p,
            )
        )
    for level in (0.05, 0.01):
        for share in (np.array(few) < level).mean(0):
            assert level * 0.5 < share < level * 1.6


def test_the_stated_power_is_reached_by_the_shift_that_is_hardest_to_see() -> None:
    rng = np.random.default_rng(1)
    law, n, alpha, caught = np.full(16, 1 / 16), 1500, 0.001, 0
    fit = stats.against_law(counted(rng.multinomial(n, law)), dict(enumerate(law)))[1]
    shift = stats.detectable_variation(fit.size, fit.df, alpha)
    shifted = law.copy()
    shifted[:8] += shift / 8  # from one half of the mass to the other, in proportion
    shifted[8:] -= shift / 8
    assert np.abs(shifted - law).sum() / 2 == pytest.approx(shift)
    for _ in range(400):
        caught += stats.against_law(counted(rng.multinomial(n, shifted)), dict(enumerate(law)))[1].p < alpha
    assert 0.86 < caught / 400 < 0.95
    more = law.copy()
    more[0] += shift  # the same variation in one place is easier to see
    more[1:] -= shift / 15
    easier = [
        stats.against_law(counted(rng.multinomial(n, more)), dict(enumerate(law)))[1].p < alpha for _ in range(50)
    ]
    assert np.mean(easier) > 0.95


def test_plain_law_is_the_one_the_engine_computes() -> None:
    import torch

    from augury.kernels import verify_probs
    from augury.verify.sampling import Draws, SlotSampling

    generator = torch.Generator().manual_seed(3)
    for i in range(40):
        rng = random.Random(i)
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.5, 1.0, 1.7]),
            top_k=rng.choice([0, 1, 5, 40]),
            top_p=rng.choice([1.0, 0.9, 0.3]),
            min_p=rng.choice([0.0, 0.05]),
            repetition_penalty=rng.choice([1.0, 1.3]),
            frequency_penalty=rng.choice([0.0, 0.4]),
            presence_penalty=rng.choice([0.0, 0.3]),
        )
        logits = torch.randn(1, 50, generator=generator) * 3
        prompt, output = [1, 2, 3], [3, 4, 4]
        sampling = SlotSampling.allocate(1)
        for name, value in {
            "temperature": params.temperature,
            "top_k": params.top_k,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "repetition": params.repetition_penalty,
            "frequency": params.frequency_penalty,
            "presence": params.presence_penalty,
            "penalized": params.penalized,
        }.items():
            getattr(sampling, name)[0] = value
        sampling.counts = torch.zeros(1, 50, dtype=torch.int32)
        sampling.in_prompt = torch.zeros(1, 50, dtype=torch.bool)
        sampling.in_prompt[0, prompt] = True
        for token in output:
            sampling.counts[0, token] += 1
        one = torch.zeros(1, dtype=torch.int64)
        history = torch.tensor([prompt + output])
        draws = Draws(one, one + 6, one + 4, one - 1, history, count=1)
        engine = verify_probs.probabilities(logits, draws, sampling)[0].double().numpy()
        assert np.abs(plain_law(logits[0].numpy(), params, prompt, output) - engine).max() < 1e-6, params


def test_beginnings_are_the_most_frequent_ones() -> None:
    texts = [(1, 2, 3)] * 150 + [(1, 4)] * 120 + [(5, 6)] * 99 + [(7,)] * 200
    found = dict(beginnings(texts, 3))
    assert found[()] == Counter({1: 270, 5: 99, 7: 200})
    assert found[(1,)] == Counter({2: 150, 4: 120})
    assert found[(1, 2)] == Counter({3: 150})
    assert set(found) == {(), (1,), (1, 2)}  # (5,) has too few, (7,) and (1, 4) have nothing behind them


def test_first_difference() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_exit_codes() -> None:
    difference = Difference("greedy", 0, None, 3, "a", "b", None, None, None, None, 0.0, "", False)
    equal, unequal = Equality("greedy", 2, 9, []), Equality("greedy", 2, 9, [difference])
    near = Equality("greedy", 2, 9, [difference._replace(near_tie=True)])
    assert ComparisonReport("", {}, [equal]).exit_code == 0
    assert ComparisonReport("", {}, [near]).exit_code == 0
    assert ComparisonReport("", {}, [unequal]).exit_code == 1
    assert ComparisonReport("", {}, [equal], drafted=False).exit_code == 2
    assert ComparisonReport("", {}, []).exit_code == 2
    assert ComparisonReport("", {}, [unequal], drafted=False).exit_code == 1
    assert ComparisonReport("", {}, [equal], law=judge([])).exit_code == 2  # a law was asked for and none was seen
