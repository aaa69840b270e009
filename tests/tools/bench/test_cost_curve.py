"""Cost curves: interpolation, files, the measurement itself, and replay against what the engine really does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curves import curve_file
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from augury.cli import app
from augury.config.errors import ConfigError
from augury.tools.advise.accept import Replayed
from augury.tools.advise.curve import CostCurve, along, check_curve, ironed, read_curve
from augury.tools.advise.drafters import drafting_for
from augury.tools.advise.predict import Predictor
from augury.tools.advise.traffic import Traffic, walked
from augury.tools.replay.tokens import Script

BUCKETS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]


def test_a_curve_gives_its_points_back_and_straight_lines_between() -> None:
    curve = check_curve(curve_file(), "file")
    for point in curve.file.steps:
        assert curve.step_ms(point.requests, point.rows, point.context) == pytest.approx(point.ms)
    assert curve.step_ms(1, 3, 64) == pytest.approx(10 + 2 * 3 + 0.64)
    assert curve.step_ms(2, 2, 64) == pytest.approx(10 + 2 * 4 + 2 * 0.64)  # between the requests measured
    assert curve.step_ms(1, 2, 288) == pytest.approx(10 + 2 * 2 + 2.88)
    assert curve.step_ms(1, 20, 64) == pytest.approx(10 + 2 * 20 + 0.64)  # on along the last piece
    assert curve.step_ms(8, 2, 64) == pytest.approx(10 + 2 * 16 + 4 * 0.64)  # past the requests: rows are what counts
    assert curve.read_ms(100) == 50


def test_rows_cost_what_the_pass_is_padded_to() -> None:
    curve = check_curve(curve_file(rows=(1, 2, 4, 6, 8), buckets=BUCKETS), "file")
    assert curve.step_ms(1, 5, 64) == curve.step_ms(1, 6, 64) == pytest.approx(10 + 2 * 6 + 0.64)
    assert curve.step_ms(4, 1.25, 64) == pytest.approx(curve.step_ms(4, 1.5, 64))  # 5 rows in all


def test_drafting_costs_by_its_kind() -> None:
    curve = check_curve(curve_file(), "file")
    assert curve.draft_ms(drafting_for("ngram", None), 1, 8, 64) == 0.5  # a look-up, however long
    assert curve.draft_ms(drafting_for("eagle3", None), 1, 8, 64) == 1.0  # a pass a token
    assert curve.draft_ms(drafting_for("dflash", None), 1, 8, 64) == 0.5  # a pass a block
    assert curve.draft_ms(drafting_for("ngram", None), 1, 0, 64) == 0.0
    with pytest.raises(ConfigError, match="no drafting time of mtp"):
        curve.draft_ms(drafting_for("mtp", None), 1, 1, 64)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 1e3), st.integers(1, 50)), min_size=1, max_size=12))
def test_ironing_gives_the_nearest_rising_line(points: list[tuple[float, int]]) -> None:
    values, weights = (np.array(column, float) for column in zip(*points, strict=True))
    flat = ironed(values, weights)
    assert (np.diff(flat) >= -1e-9).all()
    assert flat @ weights == pytest.approx(values @ weights)  # pools keep their sum
    if (np.diff(values) >= 0).all():
        assert flat.tolist() == values.tolist()
    # No other rising line is nearer: moving every pool a little, together, only makes it worse.
    for nudge in (0.01, -0.01):
        assert (weights * (flat + nudge - values) ** 2).sum() >= (weights * (flat - values) ** 2).sum() - 1e-6


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.floats(0.1, 100), min_size=16, max_size=16),
    st.integers(1, 12),
    st.floats(1, 20),
    st.floats(1, 2000),
    st.floats(1, 3),
    st.sampled_from([[], BUCKETS]),
)
def test_however_noisy_more_is_never_cheaper(
    noise: list[float], requests: int, rows: float, context: float, factor: float, buckets: list[int]
) -> None:
    written = curve_file(buckets=buckets)
    for point, ms in zip(written["steps"], noise, strict=True):
        point.update(ms=ms, low=ms, high=ms)
    curve = check_curve(written, "file")
    here = curve.step_ms(requests, rows, context)
    assert curve.step_ms(requests, rows * factor, context) >= here - 1e-9
    assert curve.step_ms(requests, rows, context * factor) >= here - 1e-9


def test_past_the_last_point_a_line_never_falls() -> None:
    assert along(5, [1, 2], [3.0, 4.0]) == 7.0 and along(5, [1, 2], [4.0, 3.0]) == 3.0 and along(9, [1], [2.0]) == 2.0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"format": "augury-cost-curve/2"},
            "format is 'augury-cost-curve/2', this version reads 'augury-cost-curve/1'",
        ),
        ({"steps": []}, "steps"),
        ({"steps": curve_file()["steps"][:-1]}, "full grid"),
        ({"steps": curve_file(rows=(2, 4))["steps"]}, "rows = 1"),
        ({"buckets": [4, 2]}, "buckets must be rising"),
        ({"reading": {"ms": -1, "low": 1, "high": 2, "count": 1}}, "reading.ms"),
        ({"reading": {"ms": 3, "low": 4, "high": 5, "count": 1}}, "must not fall"),
        (
            {"drafting": [{"method": "magic", "tokens": 1, "requests": 1, "ms": 1, "low": 1, "high": 1, "count": 1}]},
            "magic",
        ),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wrong_curve_is_refused_by_field(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    file = tmp_path / "curve.json"
    file.write_text(json.dumps(curve_file(**change)))
    with pytest.raises(ConfigError) as error:
        read_curve(file)
    assert says in str(error.value) and "curve.json" in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(curve_file())), JSON, max_size=3) | JSON)
def test_garbage_is_refused_or_is_a_curve(odd: Any) -> None:
    written = curve_file(**odd) if isinstance(odd, dict) and set(odd) <= set(curve_file()) else odd
    try:
        curve = check_curve(written, "file")
    except ConfigError as error:
        assert str(error).startswith("file: ")
    else:
        assert curve.step_ms(2, 3, 100) > 0


# --- the engine ------------------------------------------------------------------------------------------------------

PROMPTS = (
    b"one two three one two three one two",
    b"abcabcabcabc",
    b"nothing repeats here, surely",
    b"x = [1, 1, 1, 1,",
)
METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
}


@pytest.fixture(scope="module")
def engines(toy_model: Path, one_thread_throughout: None) -> dict[str, Any]:
    """Plain decoding and both methods on the toy."""
    from augury.engine.llm import LLM

    options: dict[str, Any] = {"dtype": "float32", "device": "cpu", "max_model_len": 256, "max_num_seqs": 4}
    made = {
        name: LLM(toy_model, speculative_config={**c, "num_speculative_tokens": 12}, **options)
        for name, c in METHODS.items()
    }
    return {"plain": LLM(toy_model, **options), **made}


def decode(
    llm: Any, prompt: bytes, tokens: int | None, most: int = 48
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """An answer, the rows of each of its decode steps, and what was drafted and accepted in them."""
    from augury.config.sampling import SamplingParams

    extra = None if tokens is None else {"speculative": {"num_speculative_tokens": tokens}}
    params = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True, extra_args=extra)
    [request] = llm.intake.requests("one", list(prompt), params)
    llm.engine.add(request)
    rows = []
    while request.finish_reason is None:
        llm.engine.step()
        if llm.engine.last.prompt_rows == 0:
            rows.append(llm.engine.last.rows)
    return request.tokens[request.prompt_len :], rows, request.spec_steps


@pytest.mark.parametrize("method", list(METHODS))
def test_replay_and_curve_say_what_the_engine_then_does(engines: dict[str, Any], method: str) -> None:
    """Steps, drafted and accepted tokens are predicted exactly; the time too, if steps cost what the curve says."""
    answers = [decode(engines["plain"], prompt, None)[0] for prompt in PROMPTS]
    scripts = [
        Script(np.array([*prompt, *answer], np.int64), [(len(prompt), len(prompt) + len(answer))], "", "")
        for prompt, answer in zip(PROMPTS, answers, strict=True)
    ]
    curve = check_curve(curve_file(contexts=(64,), requests=(1,), rows=(1, 2, 4, 8, 16)), "file")
    traffic, drafting = Traffic(prompt_tokens=40, answer_tokens=48), drafting_for(method, None)
    accepted_anything = False
    for tokens in (1, 2, 3, 5, 8, 12):
        counts = walked(scripts, {**METHODS[method], "num_speculative_tokens": tokens}, ends_by_length=True)
        really = [decode(engines[method], prompt, tokens) for prompt in PROMPTS]
        for i, (answer, rows, spec) in enumerate(really):
            assert answer == answers[i]
            assert counts.steps[i] == len(rows)
            assert counts.nodes[i].tolist() == [rows.count(1 + n) for n in range(tokens + 1)]
            assert counts.accepted[i] == sum(accepted for _, accepted in spec)
            accepted_anything |= counts.accepted[i] > 0
        predicted = Predictor(curve, traffic).at(Replayed({tokens: counts}), drafting, 1, tokens)
        steps = [ran for _, rows, _ in really for ran in rows]
        spent = sum(curve.step_ms(1, ran, traffic.context) + 0.5 for ran in steps)
        plainly = sum(len(answer) - 1 for answer in answers) * curve.step_ms(1, 1, traffic.context)
        assert predicted.decode.value == pytest.approx(plainly / spent)
    assert accepted_anything


def test_answers_that_end_by_themselves_replay_exactly_too(toy_model: Path, engines: dict[str, Any]) -> None:
    """A stop token inside a draft ends the answer; what was drafted behind it was in vain, here as there."""
    from augury.config.sampling import SamplingParams

    llm = engines["ngram"]
    whole, *_ = decode(engines["plain"], PROMPTS[1], None)
    stop = next(t for t in whole[8:] if t not in whole[:8])  # the first that has not been said before
    answer = whole[: whole.index(stop) + 1]
    params = SamplingParams(
        temperature=0.0,
        max_tokens=200,
        stop_token_ids=[stop],
        extra_args={"speculative": {"num_speculative_tokens": 5}},
    )
    [request] = llm.intake.requests("stops", list(PROMPTS[1]), params)
    llm.engine.add(request)
    steps = 0
    while request.finish_reason is None:
        llm.engine.step()
        steps += llm.engine.last.prompt_rows == 0
    assert request.tokens[request.prompt_len :] == answer
    script = Script(
        np.array([*PROMPTS[1], *answer], np.int64), [(len(PROMPTS[1]), len(PROMPTS[1]) + len(answer))], "", ""
    )
    counts = walked([script], {**METHODS["ngram"], "num_speculative_tokens": 5})
    drafted = int((counts.nodes * np.arange(6)).sum())
    assert (counts.steps[0], drafted, counts.accepted[0]) == (
        steps,
        sum(d for d, _ in request.spec_steps),
        sum(a for _, a in request.spec_steps),
    )


def test_the_curve_is_measured_on_the_engine_itself(
    toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    from augury.tools.bench import cost_curve

    monkeypatch.setattr(cost_curve, "ROWS", (1, 2, 4))
    monkeypatch.setattr(cost_curve, "CONTEXTS", (16, 64))
    monkeypatch.setattr(cost_curve, "CYCLES", 3)
    file, picture = tmp_path / "curve.json", tmp_path / "curve.png"
    words = ["bench", "--cost-curve", str(file), "--model", str(toy_model), "--batch", "1,3", "--rounds", "1"]
    words += ["--prompts", "chat", "--max-tokens", "12", "--threads", "1", "--plot", str(picture)]
    told = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert told.exit_code == 0, told.output
    curve: CostCurve = read_curve(file)
    assert curve.axes == ([16, 64], [1, 3], [1, 2, 4])
    assert {point.count for point in curve.file.steps} <= {
        2,
        3,
    }  # a cycle's first step still has the one before's draft
    assert {(p.method, p.requests) for p in curve.file.drafting} == {
        (m, r) for m in ("ngram", "suffix") for r in (1, 3)
    }
    assert curve.file.model["layers"] == 2 and curve.file.conditions["threads"] == 1
    assert "ms of a step at a context of 16 tokens" in told.output and picture.stat().st_size > 1000
    assert all(len(line) <= 80 for line in told.stdout.splitlines() if "stored in" not in line)


def test_a_machine_that_slows_down_does_not_bend_the_curve() -> None:
    """Cycles that took two and five times as long throughout, and one stall, leave the times as they are."""
    from augury.tools.bench.cost_curve import steadied

    true = {1: 10.0, 2: 12.0, 4: 20.0, 8: 31.0}
    cycles = [{rows: ms * mood for rows, ms in true.items()} for mood in (1.0, 2.0, 1.0, 5.0, 1.0)]
    cycles[2][4] = 400.0
    found = steadied(cycles)
    assert {rows: float(np.median(every)) for rows, every in found.items()} == pytest.approx(true)
    assert (
        sum(ms > 100 for every in found.values() for ms in every) == 1
    )  # the stall stays one, and a median's business


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--profile"], "--profile and --cost-curve"), (["--methods", "ngram"], "--methods and --cost-curve")],
)
def test_cost_curve_is_a_bench_of_its_own(words: list[str], says: str) -> None:
    told = CliRunner().invoke(app, ["bench", "--cost-curve", "-", *words])
    assert told.exit_code == 2 and says in told.output
    lost = CliRunner().invoke(app, ["bench", "--cost-curve", "/nowhere/at/all.json"])
    assert lost.exit_code == 2 and "there is no directory" in lost.output
