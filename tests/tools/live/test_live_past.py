"""`augury check --baseline FILE`: acceptance against that of an earlier day."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from staged import staged
from typer.testing import CliRunner
from vllm_text import Engine, Moment, later, started, text

from augury.cli import app

THEN = started((0.8, 0.65, 0.55))


def check(engine: Engine, *words: str) -> Any:
    with staged(*(text(Moment([one])) for one in (engine, later(engine, 2000)))) as stage:
        return CliRunner().invoke(app, ["check", stage.url, "--interval", "0.1", "--method", "eagle3", *words])


@pytest.fixture
def last_week(tmp_path: Path) -> Path:
    file = tmp_path / "monday.json"
    written = json.loads(check(THEN, "--json").stdout)
    assert written["checked_at"].startswith("20")
    file.write_text(json.dumps(written | {"checked_at": "2026-11-09T08:00+00:00"}))
    return file


@pytest.mark.parametrize(
    ("rates", "state", "code"),
    [
        ((0.8, 0.65, 0.55), "pass", 0),
        ((0.9, 0.8, 0.7), "pass", 0),  # better is well
        ((0.79, 0.64, 0.54), "pass", 0),  # certain, and too small to matter
        ((0.72, 0.55, 0.42), "warn", 0),
        ((0.6, 0.45, 0.36), "fail", 1),  # in the band, and not what it was
    ],
)
def test_a_fall_since_last_week_is_told(rates: tuple[float, ...], state: str, code: int, last_week: Path) -> None:
    made = check(started(rates), "--baseline", str(last_week), "--json")
    (line,) = (one for one in json.loads(made.stdout)["models"][0]["checks"] if one["name"] == "baseline")
    assert (line["state"], made.exit_code) == (state, code)
    assert line["against"] == "2026-11-09T08:00+00:00: 0.67, 3.00 a step"
    shown = check(started(rates), "--baseline", str(last_week)).stdout
    assert ("acceptance-fell" in shown) == (state != "pass")


def test_another_k_is_not_compared(last_week: Path) -> None:
    made = check(started((0.5, 0.3, 0.2, 0.1, 0.05)), "--baseline", str(last_week), "--json")
    found = json.loads(made.stdout)["models"][0]
    assert [one["state"] for one in found["checks"] if one["name"] == "baseline"] == ["unknown"]
    assert any("the baseline is of eagle3 with K=3" in said for said in found["remarks"])


def test_another_model_has_no_baseline_and_chance_is_no_fall(last_week: Path) -> None:
    found = json.loads(check(replace(THEN, model="other"), "--baseline", str(last_week), "--json").stdout)
    assert "baseline" not in [one["name"] for one in found["models"][0]["checks"]]
    few = json.loads(last_week.read_text())
    few["models"][0]["window"] |= {"acceptance_rate_interval": [0.3, 0.95]}
    last_week.write_text(json.dumps(few))
    made = check(started((0.6, 0.45, 0.36)), "--baseline", str(last_week), "--json")
    assert made.exit_code == 0


@pytest.mark.parametrize(
    "written", ["[]", "{}", '{"models": []}', '{"models": [{"model": "m", "window": {"acceptance_rate": "x"}}]}', "{"]
)
def test_a_file_that_tells_nothing_is_refused(written: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(written)
    made = check(THEN, "--baseline", str(file))
    assert made.exit_code == 2 and "--baseline" in made.stderr
