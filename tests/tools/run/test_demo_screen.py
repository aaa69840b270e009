"""The table of `augury demo`: every figure is readable, however narrow the terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from augury.tools.run.demo import PROMPTS, DemoRace
from augury.tools.run.screen import show_table

FACTS = {
    "K": {"ngram": 8, "eagle3": 3},
    "rounds": 3,
    "model": "SmolLM2-135M-Instruct (default)",
    "dtype": "float32",
    "device": "cpu",
    "threads": 2,
    "torch": "2",
    "temperature": 0.0,
    "max_tokens": 96,
}


def ran(speed: float, length: float, drafts: int = 5) -> list[Any]:
    return [
        SimpleNamespace(speed=speed, token_ids=[1], spec=SimpleNamespace(acceptance_length=length, num_drafts=drafts))
    ]


@pytest.mark.parametrize("width", [38, 40, 46, 60, 80, 120])
def test_every_figure_is_readable(width: int) -> None:
    ways = {"plain": ran(139.04, 1.0, 0), "ngram": ran(254.44, 5.2), "eagle3": ran(239.15, 3.47)}
    shown = io.StringIO()
    console = Console(file=shown, width=width, color_system=None)
    show_table(console, [DemoRace(prompt, dict(ways)) for prompt in PROMPTS], FACTS, 60.0)
    lines = shown.getvalue().splitlines()
    assert all(len(line) <= width for line in lines) and "…" not in shown.getvalue()
    for figure in ("139.0", "1.83x", "5.20", "1.72x", "3.47", "Open question", "yes"):
        assert sum(figure in line for line in lines) in (1, 3), figure
