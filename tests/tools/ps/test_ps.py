"""`augury ps`: servers that live are found, with their load; what has gone leaves no trace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from augury.cli import app
from augury.observe.running import announced, running
from augury.tools.ps.screen import span


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("AUGURY_CACHE", str(tmp_path))
    monkeypatch.delenv("AUGURY_API_KEY", raising=False)
    yield tmp_path / "running"


def test_who_lives_is_found_and_who_has_gone_is_cleared_away(home: Path) -> None:
    assert running(home) == []
    with announced(home, {"pid": 1}):
        (home / "7.json").write_text('{"pid": 7}')  # nobody holds its lock
        assert running(home) == [{"pid": 1}]
        assert sorted(path.name for path in home.iterdir()) == [f"{os.getpid()}.json"]
        assert (home / f"{os.getpid()}.json").stat().st_mode & 0o077 == 0
    assert running(home) == [] and list(home.iterdir()) == []


def test_a_folder_that_cannot_be_written_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with announced(tmp_path / "file" / "running", {}):
        pass


def test_the_list(home: Path) -> None:
    run = CliRunner()
    assert "No server of yours runs here" in run.invoke(app, ["ps"]).output
    known = {"url": "http://127.0.0.1:9", "models": ["toy", "org/toy"], "method": "suffix", "started": 0, "pid": 5}
    with announced(home, known):
        told = json.loads(run.invoke(app, ["ps", "--json"]).output)["servers"]
        shown = run.invoke(app, ["ps"], env={"COLUMNS": "200"}).output
    assert told[0].items() >= known.items() and told[0]["running"] is None and told[0]["uptime"] > 10**9
    assert "http://127.0.0.1:9" in shown and "toy, org/toy" in shown and "suffix" in shown and "no answer" in shown


def test_times() -> None:
    assert [span(n) for n in (5, 65, 3700, 90_000)] == ["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h"]
