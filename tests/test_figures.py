"""Figures on pages come from one run, whose command names what they are read off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import figures
import pytest
import yaml

from augury.tools.shared.prompts import SETS


def report(value: float) -> dict[str, Any]:
    spread = {"median": value, "low": value, "high": value}
    names = ["augury", *figures.SPECS]
    return {
        "results": [
            {"prompts": prompts, "contender": name, "to_plain": spread, "to_baseline": spread}
            for prompts in SETS
            for name in names
        ]
    }


def test_every_figure_can_be_read_off_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = figures.PAGE.read_text()
    copy = tmp_path / "figures.yml"
    copy.write_text(before)
    monkeypatch.setattr(figures, "PAGE", copy)
    entries = yaml.safe_load(before)
    measured = [entry for entry in entries if "line" in entry]
    assert len(figures.update(entries, report(9.876))) == len(measured) > 5
    assert {entry["says"] for entry in measured} == {"9.88x"}
    assert figures.update(entries, report(9.876)) == []
    figures.write(entries)
    assert yaml.safe_load(copy.read_text()) == entries
    assert [line for line in copy.read_text().splitlines() if line[0] == "#"] == [
        line for line in before.splitlines() if line[0] == "#"
    ]
