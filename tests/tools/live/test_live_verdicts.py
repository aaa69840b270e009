"""Verdicts where figures disagree, are missing, or cannot be: the interval and the start, engines, counters, K."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from live_windows import between, reading
from rich.console import Console
from staged import staged
from typer.testing import CliRunner
from vllm_text import EAGLE3, Engine, Moment, later, recorded, started, text

from augury.cli import app
from augury.tools.live.buckets import Buckets
from augury.tools.live.check.screen import show
from augury.tools.live.drafting import Drafting
from augury.tools.live.session import GivenOfServer, Session
from augury.tools.live.window import window
from augury.tools.shared.http import Server

GOOD = started((0.92, 0.85, 0.77), drafts=100_000)


def after(engine: Engine, drafts: int, rates: Sequence[float]) -> Engine:
    """The engine after drafts that fared otherwise than before."""
    whole = engine.drafts + drafts
    mixed = tuple((engine.drafts * a + drafts * b) / whole for a, b in zip(engine.rates, rates, strict=True))
    return later(replace(engine), drafts, 1 + sum(rates), rates=mixed)


def run(command: str, texts: Sequence[str | bytes], *words: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, the first model's record, and the screen."""
    with staged(*texts) as stage:
        made = CliRunner().invoke(app, [command, stage.url, "--interval", "0.1", "--json", *words])
    with staged(*texts) as stage:
        shown = CliRunner().invoke(app, [command, stage.url, "--interval", "0.1", *words])
    assert made.exit_code == shown.exit_code
    return made.exit_code, json.loads(made.stdout)["models"][0], shown.stdout


def texts(*moments: Sequence[Engine], edit: Callable[[str], str] = str) -> list[str]:
    return [edit(text(Moment(engines))) for engines in moments]


def states(record: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["state"] for one in record["checks"]}


def seen(record: dict[str, Any]) -> set[str]:
    return {one["id"] for one in record["seen"]}


# --- the interval and the start --------------------------------------------------------------------------------------


def test_a_drafter_that_just_died_does_not_hide_behind_old_drafts() -> None:
    code, found, shown = run("check", texts([GOOD], [after(GOOD, 76, (0, 0, 0))]), "--method", "eagle3")
    assert code == 1 and states(found)["acceptance rate"] == states(found)["acceptance length"] == "fail"
    assert found["window"]["judged_by"] == "interval" and found["window"]["since_start"]["acceptance_rate"] > 0.84
    assert states(found)["acceptance now"] == "warn" and "since the start 0.85" in shown and "0.00 in the last" in shown
    code, found, _ = run("diagnose", texts([GOOD], [after(GOOD, 76, (0, 0, 0))]))
    assert code == 1 and {"length-one", "acceptance-fell"} <= seen(found)
    assert found["causes"][0]["cause"].startswith("something broke while the server ran")


@pytest.mark.parametrize(
    ("drafts", "rates", "judged_by", "now"),
    [
        (76, (0.7, 0.5, 0.3), "since start", "warn"),  # 0.47, where the band begins, is within its interval
        (76, (0.97, 0.95, 0.93), "interval", "note"),  # for certain in the band, and better than before
        (19, (0, 0, 0), "since start", None),  # too few for anything
        (76, (0.9, 0.7, 0.5), "interval", "warn"),  # for certain in the band, and yet it is not what was before
        (2000, (0.92, 0.85, 0.77), "interval", None),
        (2000, (0.91, 0.84, 0.75), "interval", None),  # a difference that is certain and small is none
    ],
)
def test_the_interval_is_judged_where_it_settles_the_verdict(
    drafts: int, rates: tuple[float, ...], judged_by: str, now: str | None
) -> None:
    _, found, _ = run("check", texts([GOOD], [after(GOOD, drafts, rates)]), "--method", "eagle3")
    assert found["window"]["judged_by"] == judged_by and states(found).get("acceptance now") == now


def test_the_speed_is_of_one_stretch() -> None:
    found = between(GOOD, after(GOOD, 76, (0, 0, 0)))
    assert found.since_start and found.tokens_per_step == pytest.approx(3.54, abs=0.01)
    assert found.tokens_per_step_now == 1.0
    assert window(None, reading(GOOD, 1.0)).tokens_per_step_now is None


def test_nothing_accepted_is_as_many_trials_as_drafts() -> None:
    low, high = Drafting(76, 228, 0, (0.0, 0.0, 0.0)).rate_interval or (1.0, 1.0)
    assert low == 0 and high == pytest.approx(3.8416 / (76 + 3.8416))


# --- engines ---------------------------------------------------------------------------------------------------------


def pair(rates: Sequence[float], **figures: Any) -> list[str]:
    one, two = started(EAGLE3), started(rates, engine="1", **figures)
    return texts([one, two], [later(one, 900), later(two, 900)])


@pytest.mark.parametrize(
    ("rates", "state", "entry"),
    [((0.08, 0.03, 0.01), "fail", "engine-dead"), ((0.6, 0.4, 0.3), "warn", "engine-apart"), (EAGLE3, "pass", "")],
)
def test_one_engine_apart_is_named(rates: tuple[float, ...], state: str, entry: str) -> None:
    _, found, shown = run("check", pair(rates), "--method", "eagle3")
    assert states(found)["engines"] == state and ("engine 1: " in shown) == bool(entry)
    assert len(found["window"]["by_engine"]) == 2
    _, found, _ = run("diagnose", pair(rates))
    assert not entry or (entry in seen(found) and any("engine 1" in one["cause"] for one in found["causes"]))


def test_an_engine_that_drafts_nothing_is_named() -> None:
    one, two = started(EAGLE3), replace(started((0, 0, 0), drafts=0, engine="1"), generated=50_000)
    found = run("check", texts([one, two], [later(one, 900), later(two, 0, generated=51_000)]))[1]
    assert states(found)["engines"] == "fail"
    found = run("check", texts([one, two], [later(one, 900), later(two, 0, generated=50_020)]))[1]
    assert "engines" not in states(found), "twenty tokens are no proof"


# --- queues ----------------------------------------------------------------------------------------------------------


def test_good_drafts_and_a_long_queue_have_a_cause() -> None:
    busy = started((0.95, 0.87, 0.74), running=128, waiting=1000)
    code, found, shown = run("diagnose", texts([busy], [later(busy, 900, waiting=1005)]))
    best = found["causes"][0]
    assert code == 1 and "signal-queue" in seen(found) and "cut K, or send requests elsewhere" in shown
    assert best["cause"] == "so many requests that the target computes all the time" and len(best["for"]) == 2
    assert "--concurrency" in best["confirm"]
    full = replace(busy, kv=0.98)
    found = run("diagnose", texts([full], [later(full, 900, preempted=9)]))[1]
    assert found["causes"][0]["cause"] == "memory is short"


# --- counters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["num_drafts", "num_draft_tokens", "num_accepted_tokens"])
def test_a_counter_that_is_missing_is_named_and_no_rate_is_made_up(name: str) -> None:
    def without(whole: str) -> str:
        return "".join(line for line in whole.splitlines(True) if f"spec_decode_{name}_total{{" not in line)

    made = texts([GOOD], [later(GOOD, 900)], edit=without)
    code, found, shown = run("check", made, "--method", "eagle3")
    assert code == 1 and f"without vllm:spec_decode_{name}" in shown and "0.000" not in shown
    assert found["window"]["acceptance_rate"] is None and "acceptance rate" not in states(found)
    _, found, shown = run("diagnose", made)
    assert seen(found) == {"counter-missing"} and found["causes"] == [] and "rate 0" not in shown


def test_positions_that_are_missing_are_named_and_the_rate_is_judged() -> None:
    def without(whole: str) -> str:
        return "".join(line for line in whole.splitlines(True) if "per_pos_total{" not in line)

    code, found, _ = run("check", texts([GOOD], [later(GOOD, 900)], edit=without), "--method", "eagle3")
    assert code == 0 and states(found)["acceptance rate"] == "pass"
    assert any("vllm:spec_decode_num_accepted_tokens_per_pos is missing" in said for said in found["remarks"])


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (replace(GOOD, drafted=200_000), "254,000 tokens accepted of 200,000 drafted"),
        (started((1.4, 0.2, 0.1), drafts=1000), "1,400 accepted at position 0 in 1,000 drafts"),
    ],
)
def test_counters_that_cannot_be_fail(engine: Engine, says: str) -> None:
    code, found, shown = run("check", texts([engine]), "--method", "eagle3")
    assert code == 1 and states(found)["counters"] == "fail" and says in shown
    assert "acceptance rate" not in states(found)
    assert "counters-impossible" in seen(run("diagnose", texts([engine]))[1])


def test_a_scrape_in_the_middle_of_a_step_is_no_fault() -> None:
    torn = replace(started((1.0, 1.0, 1.0), drafts=100), drafted=297)  # one step's drafts are not counted yet
    assert "counters" not in states(run("check", texts([torn]))[1])


# --- without a method ------------------------------------------------------------------------------------------------


def test_what_is_not_judged_is_not_called_healthy() -> None:
    low = started((0.2, 0.1, 0.05))
    made = texts([low], [later(low, 900)])
    code, found, shown = run("check", made)
    assert code == 0 and found["verdict"] == "unknown"
    assert "not judged: name the method with --method" in shown and "healthy" not in shown
    with staged(*made) as stage:
        line = CliRunner().invoke(app, ["watch", stage.url, "--once", "--interval", "0.1"]).stdout
    assert "not judged" in line and "--method" in line and "healthy" not in line
    assert run("check", made, "--band", "0.1,0.2")[1]["verdict"] == "pass", "a band of one's own is enough"


def test_a_server_without_traffic_is_not_called_healthy() -> None:
    fresh = texts([Engine(0, EAGLE3, finished=0, queries=0, hits=0)])
    _, found, shown = run("check", fresh, "--method", "eagle3")
    assert found["verdict"] == "unknown" and "cannot be judged" in shown


@pytest.mark.parametrize("method", [(), ("--method", "ngram"), ("--method", "eagle3")])
def test_drafts_of_which_none_is_accepted_fail_by_any_method(method: tuple[str, ...]) -> None:
    none = started((0, 0, 0), drafts=80)
    code, found, _ = run("check", texts([none]), *method)
    assert code == 1 and states(found)["first position"] == states(found)["acceptance length"] == "fail"


# --- K, latencies, narrow terminals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--k", "9"), "K=9 (--k)"),
        (("-sc", '{"method": "eagle3", "model": "x", "num_speculative_tokens": 5}'), "K=5 (the configuration)"),
        (("--k", "3"), ""),
    ],
)
def test_a_server_that_is_not_what_is_said_of_it(words: tuple[str, ...], says: str) -> None:
    _, found, shown = run("check", recorded("healthy-eagle3"), "--method", "eagle3", *words)
    assert (states(found).get("configuration") == "warn") == bool(says) and says in shown
    assert found["expected"]["k"] == 3, "the server knows best"


def test_a_diagnosis_says_that_the_configuration_is_another(tmp_path: Any) -> None:
    config = '{"method": "eagle3", "model": "x/eagle3-head", "num_speculative_tokens": 5}'
    assert "config-differs" in seen(run("diagnose", recorded("healthy-eagle3"), "-sc", config)[1])


@pytest.mark.parametrize("command", ["check", "diagnose"])
def test_a_broken_configuration_is_an_error_and_nothing_else(command: str) -> None:
    with staged(*recorded("healthy-eagle3")) as stage:
        result = CliRunner().invoke(app, [command, stage.url, "--interval", "0.1", "-sc", "{bad"])
        assert result.exit_code == 2 and result.stdout == "" and "not JSON" in result.stderr and not stage.seen


def test_latencies_are_means_and_tails_are_bounds() -> None:
    quick = replace(GOOD, token_ms=1.5)  # far below the first bound, at which every median would lie half way
    _, _, shown = run("check", texts([quick], [later(quick, 900)]))
    assert "TPOT mean 1.5 ms, p99 under 10" in shown
    _, _, shown = run("check", texts([GOOD], [later(GOOD, 900, slow=3)]))
    assert "TPOT mean 12 ms, p99 under 500" in shown and "TTFT mean 50 ms" in shown
    found = Buckets({0.01: 90.0, 0.025: 98.0, float("inf"): 100.0}, 0.4)
    assert found.mean == 0.004 and found.at_most(0.9) == 0.01 and found.at_most(0.99) == float("inf")
    assert Buckets({1.0: 3.0}, float("nan")).mean is None


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_check_is_wrapped_between_words(width: int) -> None:
    with staged(*recorded("cliff-at-3")) as stage:
        session = Session(Server(stage.url), GivenOfServer(method="eagle3"))
        trail = session.over(0.1)
        judged = session.judged(trail[0], trail[-1])
    console = Console(width=width, force_terminal=True, color_system=None, file=io.StringIO())
    show(console, session, judged)
    printed: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, printed.splitlines())) <= width
    words = set(re.findall(r"\S+", printed))
    assert {"waiting", "preempted", "TTFT"} <= {word.strip(",;·") for word in words}
