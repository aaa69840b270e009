"""`augury certify`: statistics against known values, honest things pass, dishonest ones are caught."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from augury.certify import statistics as stats
from augury.certify.endpoint import Endpoint, EndpointError
from augury.certify.law import plain_law
from augury.certify.places import beginnings, judge
from augury.certify.report import Difference, Equality, Report, first_difference
from augury.certify.statistics import Cell
from augury.certify.urls import UrlPlan, certify_urls
from augury.cli import app
from augury.config.sampling import SamplingParams

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=80)


def augury(*words: str) -> Any:
    return CliRunner().invoke(app, ["certify", *words], prog_name="augury")


# --- statistics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "df", "p"),
    [  # from printed tables of the chi-square distribution
        (3.841, 1, 0.05), (6.635, 1, 0.01), (10.828, 1, 0.001), (5.991, 2, 0.05), (18.307, 10, 0.05),
        (29.588, 10, 0.001), (3.940, 10, 0.95), (43.773, 30, 0.05), (124.342, 100, 0.05), (77.929, 100, 0.95),
    ],
)  # fmt: skip
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
    cells = [Cell(i, o, e) for i, (o, e) in enumerate(pairs)]
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
        few.append((
            stats.against_law(counted(one), dict(enumerate(law)))[1].p,
            stats.against_samples(counted(one), counted(other))[1].p,
        ))  # fmt: skip
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


# --- laws, places, reports -----------------------------------------------------------------------------------------


def test_plain_law_is_the_one_the_engine_computes() -> None:
    import torch

    from augury.kernels import verify_probs
    from augury.verify.sampling import Draws, SlotSampling

    generator = torch.Generator().manual_seed(3)
    for i in range(40):
        rng = random.Random(i)
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.5, 1.0, 1.7]), top_k=rng.choice([0, 1, 5, 40]),
            top_p=rng.choice([1.0, 0.9, 0.3]), min_p=rng.choice([0.0, 0.05]),
            repetition_penalty=rng.choice([1.0, 1.3]), frequency_penalty=rng.choice([0.0, 0.4]),
            presence_penalty=rng.choice([0.0, 0.3]),
        )  # fmt: skip
        logits = torch.randn(1, 50, generator=generator) * 3
        prompt, output = [1, 2, 3], [3, 4, 4]
        sampling = SlotSampling.allocate(1)
        for name, value in {
            "temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p, "min_p": params.min_p,
            "repetition": params.repetition_penalty, "frequency": params.frequency_penalty,
            "presence": params.presence_penalty, "penalized": params.penalized,
        }.items():  # fmt: skip
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
    assert Report("", {}, [equal]).exit_code == 0
    assert Report("", {}, [near]).exit_code == 0
    assert Report("", {}, [unequal]).exit_code == 1
    assert Report("", {}, [equal], drafted=False).exit_code == 2
    assert Report("", {}, []).exit_code == 2
    assert Report("", {}, [unequal], drafted=False).exit_code == 1
    assert Report("", {}, [equal], law=judge([])).exit_code == 2  # a law was asked for and none was seen


# --- the exact proof -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lossy() -> Any:
    from augury.verify import exact

    return list(exact.lossy_lines())


@pytest.fixture
def short_proof(monkeypatch: pytest.MonkeyPatch, lossy: Any) -> Any:
    """Every fourteenth line: the whole of it is what tests/test_exact.py runs."""
    from augury.verify import exact

    some = exact.settings()[::14]
    monkeypatch.setattr(exact, "settings", lambda: some)
    monkeypatch.setattr(exact, "lossy_lines", lambda: lossy)
    return exact


def test_exact_certificate_on_the_command_line(short_proof: Any, tmp_path: Path) -> None:
    page = tmp_path / "proof.html"
    result = augury("--exact", "--json", "--html", str(page))
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    lossless = [line for line in record["lines"] if line["lossless"]]
    assert record["verdict"] == "holds" and len(lossless) == len(short_proof.settings())
    assert {line["rule"] for line in lossless} == {"standard", "block", "coupled"}
    assert all(line["total_variation"] == "0" and line["production"]["wrong"] == 0 for line in lossless)
    assert record["published"] == {"standard": "10/9", "block": "11/9"}
    bias = {line["rule"]: line["total_variation"] for line in record["lines"] if not line["lossless"]}
    assert bias["entropy"] == pytest.approx(0.11, abs=0.005) and bias["ascend_block"] == pytest.approx(0.38, abs=0.005)
    check_page(page, "exact enumeration", "LOSSY")


def test_exact_certificate_as_tables(short_proof: Any) -> None:
    tables = [augury("--exact"), augury("--exact", "--full")]
    assert "--full" in tables[0].stdout and "--full" not in tables[1].stdout
    for result in tables:
        assert result.exit_code == 0
        for words in ("standard", "block", "coupled", "LOSSY", "fractions.Fraction", "HOLDS", "10/9"):
            assert words in result.stdout


def test_exact_certificate_fails_with_a_wrong_rule(short_proof: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from augury.verify import exact_rules, rejection

    # The residual of `standard` on the law of `block`: a rule that accepts by one and resamples by the other.
    monkeypatch.setitem(short_proof.EXACT, "block", (exact_rules.block, rejection.standard))
    result = augury("--exact", "--json")
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    assert record["verdict"] == "does not hold"
    assert {line["rule"] for line in record["lines"] if not line["holds"]} == {"block"}
    assert "DOES NOT HOLD" in augury("--exact").stdout


def test_a_biased_line_fails() -> None:
    from augury.certify.proof import Certificate
    from augury.verify import exact

    line = exact.certify(exact.settings()[0])
    assert Certificate([line], {}, 0.0).exit_code == 0
    assert Certificate([line._replace(total_variation=Fraction(1, 10**6))], {}, 0.0).exit_code == 1
    assert Certificate([], {}, 0.0).exit_code == 1  # proving nothing is no proof


def check_page(path: Path, *words: str) -> None:
    """One file that needs no other, in both themes, with a picture."""
    page = path.read_text()
    assert page.startswith("<!doctype html>") and "<svg" in page and "prefers-color-scheme: dark" in page
    assert not any(thing in page for thing in ("<script", "<link", "@import", "src=", "url("))
    for word in (*words, "Conditions"):
        assert word in page


# --- a model -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shallow(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from shallow import shallow_copy

    return shallow_copy(toy_model, [0], tmp_path_factory.mktemp("shallow"))


def speculation(shallow: Path, rule: str, tokens: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "method": "draft_model", "model": str(shallow), "num_speculative_tokens": tokens,
        "draft_sample_method": "probabilistic", "rejection_sample_method": rule, **more,
    }  # fmt: skip


def load(model: Path, **more: Any) -> Any:
    from augury import LLM

    return LLM(str(model), device="cpu", dtype="float32", max_model_len=128, max_num_seqs=64, **more)


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> Any:
    return load(toy_model)


def compare(plain: Any, fast: Any, **amounts: Any) -> Report:
    from augury.certify.model import Plan, certify_model

    return certify_model(plain, fast, Plan(["abcabcabc", "hello hello", "z"], **{"max_tokens": 12, **amounts}))


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
    from augury.certify.tables import difference_line

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
    real = fast.engine.judge

    def judge(logits: Any, layout: Any, sampling: Any, slots: Any) -> Any:
        outcome = real(logits, layout, sampling, slots)
        outcome.emitted.copy_((outcome.emitted + (outcome.emitted >= 0)).clamp(max=255))
        return outcome

    fast.engine.judge = judge
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


# --- two servers ---------------------------------------------------------------------------------------------------


@cache
def toy_law(prompt: str, before: str) -> dict[str, float]:
    rng = random.Random(f"{prompt}|{before}")
    masses = [math.exp(2 * rng.gauss(0, 1)) for _ in Server.TOKENS]
    return {token: mass / sum(masses) for token, mass in zip(Server.TOKENS, masses, strict=True)}


class Server:
    """Enough of /v1/completions: a law over a few tokens that depends on the prompt and on the token before."""

    TOKENS = (" a", " b", " c", " d", " e", " f", " <g>", "\n")

    def __init__(self) -> None:
        self.bias = 0.0  # how much of the law's mass moves to the first token, from the second token of an answer on
        self.nudge = 0.0  # what is added to the second-best log-probability
        self.salt = 0
        self.key: str | None = None
        self.offers_logprobs = True
        self.drafts: int | None = 0
        self.asked: list[dict[str, Any]] = []
        self.delay = 0.0
        self.raw: bytes | None = None

    def law(self, prompt: str, before: str, depth: int) -> dict[str, float]:
        law = dict(toy_law(prompt, before))
        if self.nudge:
            best, second, *_ = sorted(law, key=lambda token: -law[token])
            law[second] = law[best] * math.exp(self.nudge)
        if self.bias and depth:
            law = {token: mass * (1 - self.bias) for token, mass in law.items()}
            law[self.TOKENS[0]] += self.bias
        return law

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.drafts = None if self.drafts is None else self.drafts + 1
        rng = random.Random(f"{self.salt}|{body['seed']}|{body['prompt']}|{body['temperature']}")
        tokens: list[str] = []
        laws = []
        for depth in range(body["max_tokens"]):
            law = self.law(body["prompt"], tokens[-1] if tokens else "", depth)
            laws.append(law)
            if body["temperature"] == 0:
                tokens.append(max(law, key=lambda token: law[token]))
            else:
                tokens += rng.choices(list(law), list(law.values()))
        told = {
            "tokens": tokens,
            "token_logprobs": [math.log(law[token]) for law, token in zip(laws, tokens, strict=True)],
            "top_logprobs": [
                {t: math.log(m) for t, m in sorted(law.items(), key=lambda i: -i[1])[: body.get("logprobs", 0)]}
                for law in laws
            ],
        }
        offered = told if self.offers_logprobs and "logprobs" in body else None
        return {"choices": [{"text": "".join(tokens), "finish_reason": "length", "logprobs": offered}]}


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        wbufsize = -1  # head and body in one packet: the second would wait for an acknowledgement of the first

        def log_message(self, *args: Any) -> None:
            pass

        def answer(self, code: int, value: Any) -> None:
            raw = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self.answer(200, {"data": [{"id": "toy"}]})
            elif self.path == "/metrics" and server.drafts is not None:
                line = f'vllm:spec_decode_num_drafts_total{{engine="0",model_name="toy"}} {float(server.drafts)}'
                self.answer(200, f"# HELP x y\n{line}\n".encode())
            else:
                self.answer(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append(body)
            if server.delay:
                threading.Event().wait(server.delay)
            if server.key and self.headers.get("Authorization") != f"Bearer {server.key}":
                self.answer(401, {"error": {"message": "Unauthorized"}})
            elif body["model"] != "toy":
                self.answer(404, {"error": {"message": "The model does not exist."}})
            elif server.raw is not None:
                self.answer(200, server.raw)
            elif not body["prompt"]:
                self.answer(400, {"error": {"message": "the prompt is\nempty"}})
            else:
                self.answer(200, server.complete(body))

    return Handler


@contextmanager
def serving(server: Server) -> Iterator[str]:
    inner = ThreadingHTTPServer(("127.0.0.1", 0), handler(server), bind_and_activate=False)
    inner.request_queue_size = 64  # more than are ever in flight
    inner.server_bind()
    inner.server_activate()
    thread = threading.Thread(target=inner.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{inner.server_port}"
    finally:
        inner.shutdown()
        inner.server_close()
        thread.join()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, str, Server, str]]:
    """One that speculates and a baseline, both honest until told otherwise."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    fast, plain = Server(), Server()
    with serving(fast) as url, serving(plain) as baseline:
        yield fast, url, plain, baseline


def certified(servers: tuple[Server, str, Server, str], **amounts: Any) -> Report:
    _, url, _, baseline = servers
    plan = UrlPlan(["one", "two", "three"], **{"max_tokens": 8, "samples": 400, **amounts})
    return certify_urls(Endpoint("--url", url), Endpoint("--baseline-url", baseline + "/v1/"), plan)


@pytest.mark.parametrize("turn", range(3))
def test_an_honest_server_passes(servers: Any, turn: int) -> None:
    # Both sides draw anew: one unlucky baseline (of a hundred there is one) would speak in all turns.
    servers[0].salt, servers[2].salt = 2 * turn + 1, 2 * turn + 2
    report = certified(servers, samples=250)
    assert report.exit_code == 0 and report.drafted
    assert report.equalities[0].equal == report.equalities[0].answers == 3
    assert report.law and {place.depth for place in report.law.places} >= {0, 1}


def test_a_biased_server_is_caught(servers: Any) -> None:
    honest = certified(servers)
    assert honest.exit_code == 0 and honest.law
    # What the honest run says it would have found, at the best place behind a first token: so much is put there.
    servers[0].bias = min(honest.law.finds(place.fit) for place in honest.law.places if place.depth)
    assert servers[0].bias < 0.35
    servers[0].nudge = 0.0
    report = certified(servers, temperatures=[1.0])
    assert report.exit_code == 1 and report.law and not report.law.holds
    guilty = [p for p, value in zip(report.law.places, report.law.adjusted, strict=False) if value < report.law.alpha]
    assert all(place.depth > 0 for place in guilty)  # before the first draft nothing was moved


def test_near_ties_between_servers(servers: Any) -> None:
    servers[0].nudge, servers[2].nudge = 0.05, -0.05
    greedy = certified(servers, temperatures=[0.0]).equalities[0]
    assert greedy.equal == 0 and greedy.holds
    found = greedy.differences[0]
    assert found.position == 0 and found.gap == pytest.approx(0.05) and found.apart == pytest.approx(0.1)
    servers[0].nudge = 1.0
    assert certified(servers, temperatures=[0.0]).exit_code == 1
    servers[0].nudge, servers[0].offers_logprobs = 0.05, False
    unknown = certified(servers, temperatures=[0.0])
    assert unknown.exit_code == 1  # without log-probabilities a difference stays unexplained
    assert unknown.equalities[0].differences[0].apart is None


def test_same_seeds(servers: Any) -> None:
    same = certified(servers, same_seed=True, samples=1, temperatures=[0.0, 1.0])
    assert [(e.answers, e.equal) for e in same.equalities] == [(3, 3), (6, 6)]
    servers[0].salt = 1
    other = certified(servers, same_seed=True, samples=1, temperatures=[0.0, 1.0])
    assert other.exit_code == 1 and other.equalities[0].equal == 3 and other.equalities[1].equal < 6


def test_samples_of_the_two_servers_share_no_seed(servers: Any) -> None:
    certified(servers, samples=20)
    seeds = [{body["seed"] for body in server.asked if body["temperature"] > 0} for server in (servers[0], servers[2])]
    assert len(seeds[0]) == len(seeds[1]) == 40 and not seeds[0] & seeds[1]


def test_a_server_that_drafts_nothing_certifies_nothing(servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endpoint, "drafts", lambda self: 7.0)
    assert certified(servers, temperatures=[0.0]).exit_code == 2
    monkeypatch.setattr(Endpoint, "drafts", lambda self: None)
    silent = certified(servers, temperatures=[0.0])
    assert silent.exit_code == 0 and any("metrics" in note for note in silent.notes)


def test_servers_without_logprobs_are_compared_by_their_text(servers: Any) -> None:
    servers[0].offers_logprobs = servers[2].offers_logprobs = False
    report = certified(servers, samples=150, max_tokens=2)
    assert report.exit_code == 0 and report.law and {place.depth for place in report.law.places} == {0}
    servers[0].bias = 0.6
    assert certified(servers, samples=150, max_tokens=2).exit_code == 1


def test_servers_on_the_command_line(servers: Any, tmp_path: Path) -> None:
    _, url, _, baseline = servers
    page = tmp_path / "page.html"
    words = ["--url", url, "--baseline-url", baseline, "--samples", "120", "--max-tokens", "8"]
    result = augury(*words, "--json", "--html", str(page))
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["conditions"]["model"] == "toy" and record["distribution"]["places"]
    check_page(page, "observed share", url)
    assert "&lt;g&gt;" in page.read_text()  # a model's text is no markup
    shown = augury(*words, "--temperature", "1")
    assert shown.exit_code == 0 and "HOLDS" in shown.stdout and "Power" in shown.stdout


def refused(result: Any, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr, result.stderr


def test_errors_of_servers_are_one_line(servers: Any) -> None:
    fast, url, _, baseline = servers
    both = ["--url", url, "--baseline-url", baseline, "--samples", "1", "--max-tokens", "4"]
    with serving(Server()) as gone:
        pass
    refused(augury("--url", gone, "--baseline-url", baseline), "--url", "cannot be reached", "running?")
    refused(augury(*both, "--model", "gpt"), "'gpt'", "offers toy", "--model")
    refused(augury("--url", "localhost:1", "--baseline-url", baseline), "http://")
    refused(augury("--url", "file:///etc", "--baseline-url", baseline), "http://")
    fast.key = "secret"
    refused(augury(*both), "wants a key", "401", "--api-key")
    bad = augury(*both, "--api-key", "wrong-key")
    refused(bad, "refuses this key")
    assert "wrong-key" not in bad.stderr
    good = augury(*both, "--api-key", "secret", "--temperature", "0", "--json")
    assert good.exit_code == 0 and "secret" not in good.output
    fast.key, fast.delay = None, 0.5
    refused(augury(*both, "--timeout", "0.05"), "did not answer within 0.05 s", "--timeout")
    fast.delay, fast.raw = 0.0, b"<html>"
    refused(augury(*both), "does not answer in JSON", "<html>")
    fast.raw = b'{"choices": []}'
    refused(augury(*both), "not a completion")


def test_a_servers_reason_is_passed_on(servers: Any) -> None:
    with pytest.raises(EndpointError, match="HTTP 400: the prompt is empty"):
        Endpoint("--url", servers[1]).complete("", max_tokens=1, temperature=0.0, seed=0)


def test_errors_of_use_are_one_line(servers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUGURY_SPECULATIVE_CONFIG", raising=False)
    _, url, _, baseline = servers
    refused(augury(), "--exact", "-sc", "--baseline-url")
    refused(augury("--exact", "--url", url), "one of the three")
    refused(augury("--url", url), "--baseline-url is missing")
    refused(augury("--baseline-url", url), "--url is missing")
    refused(augury("--exact", "--html", str(tmp_path / "no" / "x.html")), "no directory")
    refused(augury("-sc", '{"method": "ngram", "num_speculative_tokens": -1}'), "num_speculative_tokens")
    talk = tmp_path / "talk.jsonl"
    talk.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    refused(augury("--url", url, "--baseline-url", baseline, "--prompts", str(talk)), '"prompt"')


def test_servers_are_compared_without_torch(servers: Any) -> None:
    _, url, _, baseline = servers
    code = (
        "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr));"
        "from augury.cli import main; main()"
    )
    words = ["certify", "--url", url, "--baseline-url", baseline, "--samples", "120", "--max-tokens", "2", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.strip() == "False", done


# --- the embedded model --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["coupled", "block"])
def test_embedded_model(rule: str, default_model: Path, tmp_path: Path) -> None:
    from shallow import shallow_copy

    from augury import LLM
    from augury.certify.model import SETTINGS, Plan, certify_model
    from augury.certify.prompts import PROMPTS

    weak = shallow_copy(default_model, [0, 1, 2, 28, 29], tmp_path / "weak")
    common = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 32}
    fast = LLM(str(default_model), **common, speculative_config=speculation(weak, rule, tokens=3))
    plan = Plan(PROMPTS[:2], SETTINGS[:2], max_tokens=16, samples=250)
    report = certify_model(LLM(str(default_model), **common), fast, plan)
    assert report.exit_code == 0, report.record()
