"""What a server is held against: one band a method, target and K, for `check` and `advise` alike; and drafts of now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from live_windows import between
from staged import staged
from typer.testing import CliRunner
from vllm_text import Engine, Moment, later, started, text

from augury.cli import app
from augury.methods.registry import METHODS
from augury.tools.advise.published import find_published
from augury.tools.live.expectation import expect

NORMAL = (0.66, 0.44, 0.3)  # 2.4 tokens a step
TARGETS = {
    "meta-llama/Llama-3.1-8B-Instruct": ("llama", (2.4, 3.1)),
    "openai/gpt-oss-120b": ("gpt_oss", (2.2, 2.9)),
    "Qwen/Qwen3-VL-30B-A3B": ("qwen3_vl", (1.2, 1.8)),
    "prod-chat": ("other", (2.2, 3.2)),
    "acme/evlynn-7b": ("evlynn_7b", (2.2, 3.2)),  # vl within a word is no family
}


def run(command: str, engines: Sequence[Engine], *words: str, edit: str = "") -> tuple[int, dict[str, Any], str]:
    """The exit code, the first model's record, and the screen."""
    texts = [text(Moment([engine])) + edit for engine in engines]
    with staged(*texts) as stage:
        made = CliRunner().invoke(app, [command, stage.url, "--interval", "0.1", "--json", *words])
    with staged(*texts) as stage:
        shown = CliRunner().invoke(app, [command, stage.url, "--interval", "0.1", *words])
    assert made.exit_code == shown.exit_code
    return made.exit_code, json.loads(made.stdout)["models"][0], shown.stdout


def states(record: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["state"] for one in record["checks"]}


# --- bands -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "family"), TARGETS.items())
def test_check_and_advise_have_one_band(model: str, family: tuple[str, tuple[float, float]]) -> None:
    engine = replace(started((0.7, 0.5, 0.3)), model=model)
    assert expect(between(engine, later(engine, 500)), "eagle3", None, None, {}).length == family[1]
    if model != "acme/evlynn-7b":
        told = find_published("eagle3", family[0], "chat")
        assert told is not None and told.tokens == 3 and (told.length[0], told.length[2]) == family[1]


@pytest.mark.parametrize("method", [name for name, card in METHODS.items() if card.band])
def test_every_card_agrees_with_advise_and_with_itself(method: str) -> None:
    band = METHODS[method].band
    told = find_published(method, "no-such-family", "unknown")
    assert band is not None and band.length is not None and told is not None
    assert (told.length[0], told.length[2], told.tokens) == (*band.length, band.tokens)
    assert band.at(band.tokens).length == band.length and band.at(band.tokens).rate == band.rate
    if band.rate is not None:
        exact = [(length - 1) / (band.tokens or 1) for length in band.length]
        assert list(band.rate) == pytest.approx(exact, abs=0.01)
        assert band.rate[0] <= exact[0] + 1e-6 and exact[1] - 1e-6 <= band.rate[1]


@pytest.mark.parametrize(
    ("rates", "verdict"), [(NORMAL, "pass"), ((0.77, 0.57, 0.43), "pass"), ((0.58, 0.4, 0.25), "warn")]
)
def test_a_normal_eagle3_server_is_healthy(rates: tuple[float, ...], verdict: str) -> None:
    engine = started(rates)
    code, found, shown = run("check", [engine, later(engine, 2000)], "--method", "eagle3")
    assert found["verdict"] == verdict and code == 0, shown
    assert ("healthy" in shown) == (verdict == "pass") and "band 2.4 to 3.1" in shown
    told = '{"method": "eagle3", "model": "x", "num_speculative_tokens": 3}'
    code, found, shown = run("diagnose", [engine, later(engine, 2000)], "--config", told)
    assert code == (verdict != "pass"), shown


def test_far_under_the_band_is_a_fault() -> None:
    engine = started((0.4, 0.2, 0.1))
    code, found, _ = run("check", [engine, later(engine, 2000)], "--method", "eagle3")
    assert code == 1 and states(found)["acceptance rate"] == "fail"


def test_a_block_drafter_is_not_held_to_half_of_its_block() -> None:
    engine = started([0.75**n for n in range(1, 16)])  # 3.96 tokens a step, 0.20 of the drafted tokens
    _, found, _ = run("check", [engine, later(engine, 2000)], "--method", "dflash")
    assert states(found)["acceptance rate"] == states(found)["acceptance length"] == "pass"


def test_a_band_is_that_of_the_k_in_use() -> None:
    small = between(started((0.9,)), later(started((0.9,)), 500))
    low, high = expect(small, "eagle3", None, None, {}).length or (0, 0)
    assert 1.6 < low < high < 2
    seven = started((0.7, 0.5, 0.36, 0.26, 0.19, 0.13, 0.1))
    found = expect(between(seven, later(seven, 500)), "eagle3", None, None, {})
    assert found.length and 2.7 < found.length[0] < 3.1 and found.rate and found.rate[0] < 0.3
    scheduled = replace(seven, drafted=60_000)  # K may be 7, and 1.5 tokens are drafted at a time
    found = expect(between(scheduled, later(scheduled, 500)), "eagle3", None, None, {})
    assert found.length and found.length[0] == low, "what K=1 reaches is enough"


# --- drafts beside tokens --------------------------------------------------------------------------------------------


def stopped(engine: Engine, tokens: int, drafts: int = 0) -> list[Engine]:
    """The engine, and the same after so many tokens with so many drafts."""
    whole = later(engine, drafts, generated=engine.generated + tokens, finished=engine.finished + 2)
    return [engine, whole]


@pytest.mark.parametrize("words", [(), ("--method", "eagle3")])
def test_a_server_that_drafts_nothing_now_does_not_pass(words: tuple[str, ...]) -> None:
    code, found, shown = run("check", stopped(started(NORMAL), 400), *words)
    assert code == 1 and states(found)["drafts"] == "fail" and found["verdict"] == "fail"
    assert "for 398 tokens" in shown and "before: 100% of tokens" in shown
    code, found, _ = run("diagnose", stopped(started(NORMAL), 400))
    assert code == 1 and "drafts-stopped" in [one["id"] for one in found["seen"]]
    assert found["causes"][0]["cause"] == "the drafter died while the server ran"


def test_a_schedule_is_a_cause_and_no_fault_where_the_server_says_so() -> None:
    table = '"num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 0]]'
    key = f'{{"method": "eagle3", "model": "x", "num_speculative_tokens": 3, {table}}}'
    busy = started(NORMAL, running=40)
    causes = run("diagnose", stopped(busy, 400), "--config", key)[1]["causes"]
    assert "a schedule that drafts nothing with so many requests" in [one["cause"] for one in causes[:2]]
    ours = 'augury:num_speculative_tokens{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0\n'
    _, found, _ = run("check", stopped(busy, 400), "--method", "eagle3", edit=ours)
    assert states(found)["drafts"] == "pass"


def test_few_tokens_and_first_tokens_are_no_proof() -> None:
    assert states(run("check", stopped(started(NORMAL), 60), "--method", "eagle3")[1])["drafts"] == "pass"
    engine = started(NORMAL)
    scored = later(engine, 0, generated=engine.generated + 30)  # thirty answers of one token: nothing to draft for
    assert states(run("check", [engine, scored], "--method", "eagle3")[1])["drafts"] == "pass"


def test_look_ups_may_find_nothing_and_it_is_said() -> None:
    rare = replace(started((0.5, 0.3, 0.2)), generated=2_000_000)
    code, found, _ = run("check", stopped(rare, 400), "--method", "ngram")
    assert code == 0 and states(found)["drafts"] == "warn"
    assert run("check", stopped(rare, 400))[1]["verdict"] == "warn", "nobody named a method"


def test_a_drafter_that_serves_half_of_the_requests_is_told() -> None:
    code, found, shown = run("check", stopped(started(NORMAL), 4000, 300), "--method", "eagle3")
    assert code == 0 and states(found)["drafts"] == "warn" and "18% of" in shown
    found = run("check", stopped(replace(started(NORMAL), generated=900_000), 4000, 300), "--method", "ngram")[1]
    assert states(found)["drafts"] == "pass"


# --- by the length of the text ---------------------------------------------------------------------------------------


def by_context(counts: dict[str, tuple[int, int]], scale: int = 1) -> str:
    """Augury's own counters: drafts of three tokens and how many were accepted, by the bound of the text's length."""
    rows = []
    for bound, (drafts, accepted) in counts.items():
        labels = f'{{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct",context="{bound}"}}'
        for name, value in (("drafts", drafts), ("draft_tokens", 3 * drafts), ("accepted_tokens", accepted)):
            rows.append(f"augury:spec_decode_num_{name}_by_context_total{labels} {scale * value}")
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ({"1024": (500, 1000), "32768": (500, 960), "+Inf": (400, 400)}, "warn"),
        ({"1024": (500, 1000), "32768": (500, 960), "+Inf": (400, 780)}, "pass"),
        ({"1024": (500, 1000), "+Inf": (19, 2)}, None),  # too few to say anything
        ({"1024": (500, 1000)}, None),
    ],
)
def test_acceptance_that_falls_with_the_text_is_told(counts: dict[str, tuple[int, int]], state: str | None) -> None:
    engine = started(NORMAL)
    texts = [text(Moment([engine])), text(Moment([later(engine, 2000)])) + by_context(counts)]
    with staged(*texts) as stage:
        made = CliRunner().invoke(app, ["check", stage.url, "--interval", "0.1", "--json", "--method", "eagle3"])
    found = json.loads(made.stdout)["models"][0]
    assert states(found).get("long texts") == state
    assert len(found["window"]["by_context"]) == len(counts)
    if state == "warn":
        with staged(*texts) as stage:
            shown = CliRunner().invoke(app, ["diagnose", stage.url, "--interval", "0.1"]).stdout
        assert "0.33 beyond 32768 tokens, 0.67 on short texts" in shown
