"""What the commands around drafters print in terminals that are narrow."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from augury.cli import app
from augury.config.installed import Installed
from augury.tools.train.run import _line
from augury.tools.train.screen import bar
from augury.train.loop import Progress


@pytest.mark.parametrize("width", [50, 64, 80, 120])
def test_the_bar_of_a_training_fits(width: int) -> None:
    shown = io.StringIO()
    bars = bar(Console(file=shown, width=width, force_terminal=True, color_system=None, legacy_windows=False))
    bars.add_task("training: loss 0.470, length 2.88", total=39800, completed=12677)
    bars.add_task("held-humaneval: the target answers", total=80, completed=80)
    bars.console.print(bars.get_renderable())
    first, second, *rest = shown.getvalue().splitlines()
    assert not rest and len(first) <= width and len(second) <= width
    assert "loss 0.470, length 2.88 " in first and "12677/39800" in first and "80/80" in second
    assert ("━" in first) == (width >= 80)  # a bar where there is room


def test_a_loss_stands_beside_the_length_of_its_own_time() -> None:
    """Not the best so far, beside which a length that falls would not be seen."""
    now = Progress(best=2.0, loss=0.5)
    assert _line(now) == "training: loss 0.500"
    now.history += [{"length": {"a": 2.5, "b": 1.5}}, {"length": {"a": 1.5, "b": 1.2}}]
    assert _line(now) == "training: loss 0.500, length 1.35"


def test_the_list_of_drafters_cuts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    target = ("SmolLM2-135M-Instruct.Q4_1", "gguf-b179c9523d0e6a0f")
    found = [
        Installed("augury-smollm2-drafters", method, *target, tmp_path, 3, settings)  # type: ignore[arg-type]
        for method, settings in (("eagle3", {}), ("eagle3", {"parallel_drafting": True}), ("mlp_speculator", {}))
    ]
    monkeypatch.setattr("augury.tools.train.drafters.installed", lambda: tuple(found))
    done = CliRunner().invoke(app, ["drafter", "list"], env={"COLUMNS": "80"})
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[0] == "augury-smollm2-drafters, for SmolLM2-135M-Instruct.Q4_1 (gguf-b179c9523d0e6a0f)"
    assert [line.split() for line in lines[1:]] == [
        ["method", "K"],
        ["eagle3", "3"],
        ["eagle3,", "parallel_drafting", "3"],
        ["mlp_speculator", "3"],
    ]
