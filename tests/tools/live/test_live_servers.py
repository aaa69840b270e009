"""`check`, `watch` and `diagnose` on our own server, running for real: healthy, a wrong drafter, K too large, off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cycling import cycling_model
from served import Served, served
from typer.testing import CliRunner

from augury.cli import app

LOOK_UP = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 3}
SPEED = {"below-plain", "regime-no-speed-up", "signal-no-overlap"}  # what hangs on the clock
CLIFF = {
    **LOOK_UP,
    "num_speculative_tokens": 6,
    "rejection_sample_method": "synthetic",
    "synthetic_acceptance_rates": [0.95, 0.9, 0.1, 0.05, 0.02, 0.01],
}


@pytest.fixture(scope="module")
def cycling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cycling_model(tmp_path_factory.mktemp("cycling"))


def run(*words: str) -> tuple[int, Any]:
    """The exit code and the record of the first model."""
    result = CliRunner().invoke(app, [*words, "--json"], prog_name="augury")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout)["models"][0]


def states(record: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["state"] for one in record["checks"]}


def causes(record: dict[str, Any]) -> list[str]:
    return [one["cause"] for one in record["causes"]]


LINES = "Repeat this line ten times.\n" + "the quick brown fox jumps over the lazy dog\n" * 4


def traffic(server: Served) -> None:
    """Requests as clients send them; probes are no traffic."""
    for number in range(8):
        body = {"prompt": f"{number}. {LINES}", "max_tokens": 96, "temperature": 0}
        assert server.http.post("/v1/completions", json=body).status_code == 200
    server.until_idle()


@pytest.fixture(scope="module")
def healthy(cycling: Path) -> Iterator[Served]:
    with served(cycling, "--served-model-name", "toy", "--log-stats-interval", "1", spec=LOOK_UP) as server:
        yield server


def test_before_any_traffic_nothing_is_judged(healthy: Served) -> None:
    code, found = run("check", healthy.url, "--interval", "0.2")
    assert code == 0 and states(found)["drafts"] == "unknown" and found["expected"]["named_by"] == "the server"


def test_a_healthy_server(healthy: Served) -> None:
    traffic(healthy)
    _, found = run("check", healthy.url, "--interval", "0.5")
    checked = states(found)
    # The server's own estimate of its speed-up hangs on how busy this machine is.
    assert "fail" not in [state for name, state in checked.items() if name != "speed-up"], found
    assert [checked[name] for name in ("drafts", "acceptance rate", "acceptance length", "KV cache")] == ["pass"] * 4
    window, live = found["window"], healthy.until_idle()
    # The toy says one line over and over; wrong are only the guesses that the prompts' own words lead to.
    assert window["acceptance_rate"] > 0.8 and window["acceptance_length"] > 4
    assert window["per_position_over_drafts_that_reached_it"][0] > 0.8
    assert window["k"] == 4 == live["num_spec_tokens"]
    _, found = run("diagnose", healthy.url, "--interval", "0.3")
    assert {one["id"] for one in found["seen"] if one["severity"] != "note"} <= SPEED, found["seen"]


def test_probes_are_no_traffic(cycling: Path) -> None:
    """They are judged in their interval, and what has been since the start leaves them out, now and afterwards."""
    with served(cycling, "--served-model-name", "toy", spec=LOOK_UP) as server:
        asked = {"model": "toy", "prompt": "abcabcabc", "max_tokens": 20, "temperature": 0}
        assert server.http.post("/v1/completions", json=asked).status_code == 200
        server.until_idle()
        _, before = run("check", server.url, "--interval", "0.2")
        _, probed = run("check", server.url, "--interval", "0.2", "--probe")
        _, after = run("check", server.url, "--interval", "0.2")
    found = [one["window"] for one in (before, probed, after)]
    assert found[0]["since_start"]["drafts"] > 0 and found[0]["probes"] == 0 and found[1]["probes"] == 8
    assert found[0]["since_start"] == found[1]["since_start"] == found[2]["since_start"]
    assert found[1]["interval"]["drafts"] > found[0]["since_start"]["drafts"] and found[1]["judged_by"] == "interval"
    assert found[0]["generated_tokens"] == found[2]["generated_tokens"] == 20
    assert any("8 probes were sent" in line for line in probed["remarks"])


def test_its_log_and_its_screen(healthy: Served, tmp_path: Path) -> None:
    traffic(healthy)
    log = tmp_path / "log"
    log.write_text(healthy.log)
    _, found = run("diagnose", healthy.url, "--interval", "0.3", "--log", str(log))
    assert found["facts"]["refused_in_log"] is False and found["facts"]["method"] == "ngram"
    shown = CliRunner().invoke(app, ["watch", healthy.url, "--once", "--interval", "0.2"])
    assert shown.exit_code < 2 and "toy" in shown.stdout and "rate" in shown.stdout


@pytest.mark.slow
def test_a_wrong_drafter(cycling: Path, toy_model: Path) -> None:
    spec = {"method": "draft_model", "model": str(toy_model), "num_speculative_tokens": 3}
    with served(cycling, spec=spec) as server:
        traffic(server)
        code, found = run("check", server.url, "--interval", "0.5")
        assert code == 1 and states(found)["acceptance rate"] == "fail" and found["window"]["acceptance_rate"] < 0.1
        code, found = run("diagnose", server.url, "--interval", "0.3", "--config", json.dumps(spec))
    assert code == 1 and "rate-under-half" in [one["id"] for one in found["seen"]]
    first = causes(found)[0]
    assert first in ("the drafter is of another model altogether", "drafter and target have different tokenizers")


@pytest.mark.slow
def test_k_too_large(cycling: Path) -> None:
    with served(cycling, spec=CLIFF) as server:
        traffic(server)
        code, found = run("check", server.url, "--interval", "0.5", "--strict")
        assert code == 1 and states(found)["later positions"] == "warn" and states(found)["rule"] == "warn"
        code, found = run("diagnose", server.url, "--interval", "0.3")
    assert code == 1 and causes(found)[0] == "K is too large: 2 positions are worth drafting"


@pytest.mark.slow
def test_speculation_off_and_a_baseline(cycling: Path, healthy: Served, tmp_path: Path) -> None:
    with served(cycling, spec=None) as server:
        code, found = run("check", server.url, "--interval", "0.5", "--probe")
        assert code == 1 and states(found)["drafts"] == "fail"
        code, found = run("diagnose", server.url, "--interval", "0.3")
        assert code == 1 and causes(found)[0] == "speculation is not configured"
        run("check", healthy.url, "--interval", "0.2", "--probe")
        _, found = run("diagnose", healthy.url, "--interval", "0.3", "--baseline-url", server.url)
    assert found["facts"]["speed_up"] > 0 and "tail_worse" in found["facts"]
