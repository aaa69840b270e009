"""`augury diagnose`: regimes, crossed signals and curves on recorded texts; logs, baselines, configurations."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from staged import body, staged
from typer.testing import CliRunner
from vllm_text import EAGLE3, Engine, Moment, later, plain, recorded, started, text

from augury.cli import app
from augury.config.errors import ConfigError
from augury.tools.knowledge.base import knowledge
from augury.tools.live.diagnose.baseline import Speeds, compared, of_file
from augury.tools.live.diagnose.diagnosis import TOLD_BY, diagnose
from augury.tools.live.release import release_in

REFUSED = "the configuration was refused, or silently dropped (0.9.1 to 0.15)"
EAGLE_CONFIG = '{"method": "eagle3", "model": "x/eagle3-head", "num_speculative_tokens": 3}'
COMMANDS = re.compile(r"augury (bench serve|[a-z]+)((?: (?:--[\w-]+|[A-Z]+|[\d,]+|ngram|suffix))*)")


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["diagnose", *words], prog_name="augury")


def asked(texts: tuple[bytes | str, ...], *words: str) -> tuple[Any, dict[str, Any]]:
    """The result and the first model's record."""
    version = body('{"version": "0.29.0"}', "application/json")
    with staged(*texts, version=version) as stage:
        result = run(stage.url, "--interval", "0.2", "--json", *words)
    return result, json.loads(result.stdout)["models"][0]


def ids(found: dict[str, Any]) -> list[str]:
    return [one["id"] for one in found["seen"]]


def test_nothing_wrong_is_said() -> None:
    result, found = asked(recorded("healthy-eagle3"), "--config", EAGLE_CONFIG)
    assert result.exit_code == 0 and not found["wrong"] and found["causes"] == []
    with staged(*recorded("healthy-eagle3")) as stage:
        shown = run(stage.url, "--interval", "0.2", "--config", EAGLE_CONFIG).stdout
    assert "nothing wrong found" in shown and "--baseline-url" in shown


@pytest.mark.parametrize(
    ("scene", "seen", "first"),
    [
        ("first-position-low", "regime-short-drafts", "drafter and target have different tokenizers"),
        ("length-one", "length-one", "the drafter was made for another method"),
        ("cliff-at-3", "position-cliff", "K is too large: 3 positions are worth drafting"),
        ("speculation-off", "regime-no-drafts", REFUSED),
    ],
)
def test_each_regime_has_its_first_cause(scene: str, seen: str, first: str) -> None:
    result, found = asked(recorded(scene), "--config", EAGLE_CONFIG)
    assert result.exit_code == 1 and seen in ids(found)
    assert found["causes"][0]["cause"] == first and found["causes"][0]["confirm"]


def test_memory_and_queues_are_seen() -> None:
    _, found = asked(recorded("memory-short"), "--config", EAGLE_CONFIG)
    assert {"kv-nearly-full", "queue-long", "preempting"} <= set(ids(found))


def test_without_a_configuration_speculation_was_perhaps_never_asked_for() -> None:
    result, found = asked(recorded("speculation-off"))
    assert result.exit_code == 1 and found["causes"][0]["cause"] == "speculation is not configured"
    assert any("--config" in one["told_by"] for one in found["not_known"])


def test_look_ups_without_a_guess_are_no_fault_of_the_configuration() -> None:
    _, found = asked(recorded("no-drafts"), "--config", '{"method": "ngram", "num_speculative_tokens": 3}')
    assert found["causes"][0]["cause"].startswith("nothing in the text comes again")


def test_the_divisor_trap_is_named_and_no_k_is_advised() -> None:
    _, found = asked(recorded("suffix-short-drafts"), "--config", '{"method": "suffix", "num_speculative_tokens": 8}')
    assert "divisor-trap" in ids(found) and "position-cliff" not in ids(found)
    assert not any("K is too large" in one["cause"] for one in found["causes"])


# --- baselines -------------------------------------------------------------------------------------------------------


def with_baseline(scene: str, base: Engine, *words: str) -> dict[str, Any]:
    with staged(text(Moment([base])), text(Moment([later(base, 0, generated=99_000)]))) as other:
        return asked(recorded(scene), "--baseline-url", other.url, *words)[1]


def test_good_drafts_that_bring_nothing() -> None:
    found = with_baseline("busy-batch", plain(running=60), "--config", EAGLE_CONFIG)
    assert found["facts"]["speed_up"] == pytest.approx(30 / 31)
    assert "regime-no-speed-up" in ids(found) and "below-plain" not in ids(found)  # within what an estimate errs by
    quicker = replace(plain(running=60), token_ms=25.0, step_ms=25.0)
    slower = with_baseline("busy-batch", quicker, "--config", EAGLE_CONFIG)
    assert {"regime-no-speed-up", "below-plain"} <= set(ids(slower))
    best = found["causes"][0]
    assert "requests" in best["cause"] or "batch" in best["cause"]
    assert "64 requests run at once" in best["for"]


def test_a_worse_tail_is_seen_although_the_mean_is_better() -> None:
    found = with_baseline("tail-worse", plain(), "--config", EAGLE_CONFIG)
    assert found["facts"]["speed_up"] > 1 and "regime-tail" in ids(found)
    assert "regime-tail" not in ids(with_baseline("healthy-eagle3", plain(), "--config", EAGLE_CONFIG))


def test_prefix_hits_that_fell_and_latency_that_did_not_move() -> None:
    found = with_baseline("healthy-eagle3", plain(hits=54_000), "--config", EAGLE_CONFIG)
    # The baseline's interval has 1500 hits of 3000 tokens as well; since its start it has more.
    assert found["facts"]["prefix_hits_fell"] is False and found["facts"]["itl_unchanged"] is True
    assert "signal-itl" in ids(found)
    assert compared(Speeds(hits=0.4), Speeds(hits=0.9)) == {"prefix_hits_fell": True}


def test_different_loads_make_a_comparison_doubtful() -> None:
    found = with_baseline("busy-batch", plain(running=2), "--config", EAGLE_CONFIG)
    assert any("different loads" in remark for remark in found["remarks"])


def test_a_baseline_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plain.json"
    with staged(text(Moment([plain()])), text(Moment([later(plain(), 0, generated=99_000)]))) as stage:
        checked = CliRunner().invoke(app, ["check", stage.url, "--interval", "0.1", "--json"])
    file.write_text(checked.stdout)
    assert of_file(file).tpot == pytest.approx(0.03)
    file.write_text(json.dumps({"mean_tpot_ms": 30.0, "p99_tpot_ms": 40.0, "mean_itl_ms": 30.0}))
    assert compared(Speeds(0.012, tails=(("tpot", 0.02),)), of_file(file))["speed_up"] == 2.5
    for wrong in ("[]", "{", '{"models": []}', '{"models": 3}'):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="--baseline-json"):
            of_file(file)


# --- the ranking -----------------------------------------------------------------------------------------------------


def test_a_score_is_place_and_facts_and_nothing_else() -> None:
    facts = {
        "method": "eagle3",
        "acceptance_length": 3.0,
        "speed_up": 1.0,
        "running": 2,
        "logged_async": "off",
        "logged_eager": False,
        "tp": 1,
        "counters_present": True,
    }
    found = diagnose(facts, {}, {"URL": "http://u"})
    best = found.suspects[0]
    assert best.cause == "asynchronous scheduling is off" and best.supported == ("the start-up log says so",)
    assert best.score == best.place + 2
    eager = next(one for one in found.ruled_out if one.cause == "eager mode is forced")
    assert eager.score == eager.place - 2 and eager.contradicted
    scores = [one.score for one in found.suspects]
    assert scores == sorted(scores, reverse=True) and all(score > 0 for score in scores)


def test_what_the_doctor_finds_is_evidence() -> None:
    config = (
        '{"method": "eagle3", "model": "x/eagle3", "num_speculative_tokens": 3, "speculative_token_tree": "[(0,)]"}'
    )
    _, found = asked(recorded("speculation-off"), "--config", config)
    assert "the doctor finds faults in the configuration" in found["causes"][0]["for"]


def test_what_is_missing_is_asked_of_whoever_can_tell() -> None:
    found = diagnose({}, {}, {})
    assert found.suspects == [] and not found.wrong
    told = {who for who, _ in TOLD_BY.values()}
    assert set(found.unknown) <= told and any("--baseline-url" in who for who in found.unknown)


@pytest.mark.parametrize(
    ("written", "release"),
    [("0.19.2rc1.dev8+g4b", "0.19.2"), ("v0.21", "0.21"), ("dev", None), (None, None), ("0.1.0", None)],
)
def test_releases_however_a_build_spells_them(written: str | None, release: str | None) -> None:
    assert release_in(written) == release


def test_two_baselines_are_one_too_many(tmp_path: Path) -> None:
    result = run("http://x", "--baseline-url", "http://y", "--baseline-json", str(tmp_path / "z"))
    assert result.exit_code == 2 and "give one" in result.stderr


def test_models_are_kept_apart() -> None:
    one, two = started(EAGLE3), replace(started((0.0, 0.0, 0.0)), model="second")
    with staged(text(Moment([one, two])), text(Moment([later(one, 900), later(two, 900)]))) as stage:
        result = run(stage.url, "--interval", "0.2", "--json", "--config", EAGLE_CONFIG)
    found = {model["model"]: model["wrong"] for model in json.loads(result.stdout)["models"]}
    assert found == {"meta-llama/Llama-3.1-8B-Instruct": False, "second": True}


def test_measurements_are_commands_that_exist() -> None:
    help_of: dict[str, str] = {}
    for entry in knowledge().values():
        for cause in entry.causes:
            for command, rest in COMMANDS.findall(cause.confirm):
                if command not in help_of:
                    shown = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"})
                    assert shown.exit_code == 0, command
                    help_of[command] = shown.stdout
                for flag in re.findall(r"--[\w-]+", rest):
                    assert flag in help_of[command], f"{command} has no {flag}"
    assert {"doctor", "check", "bench serve", "replay", "diagnose", "watch"} <= set(help_of)
