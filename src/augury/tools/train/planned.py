"""Makes a training plan and shows it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from augury.config.errors import ConfigError
from augury.tools.advise.gpus import find_gpu
from augury.tools.advise.shape import shape_of
from augury.tools.advise.target import find_target
from augury.tools.shared.terminal import output_console, print_json
from augury.tools.train.kinds import check_size, usual_layers
from augury.tools.train.plan import TrainingPlan, TrainingWork, plan
from augury.tools.train.prompts import ALL_HELD, read_prompts

EMBEDDED = "default"


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The options of a run that its plan depends on."""

    method: str
    target: str
    gpu: str
    prompts: list[Path]
    held_out: list[Path]
    openings: int
    collected: Path | None
    k: int
    work: dict[str, Any]

    def texts(self) -> tuple[int, int]:
        """The number of texts to train on, and how many of them a server has already answered."""
        held = {json.dumps(one) for one in read_prompts(self.held_out, "--held-out")} if self.held_out else set()
        asked = read_prompts(self.prompts) if self.prompts else []
        served = 0
        if self.collected is not None:
            from augury.train.collected import count_collected

            served = count_collected(self.collected, self.work["longest"])
        fresh = sum(json.dumps(one) not in held for one in asked)
        if asked and not fresh:
            raise ConfigError(ALL_HELD)
        found = served + self.openings + fresh
        if not found:
            raise ConfigError(
                "--plan: give --prompts, --openings or --from; a plan depends on how many texts there are."
            )
        return found, served


def say_plan(run: PlannedRun, as_json: bool) -> None:
    """Count the texts, make the plan and print it."""
    from augury.train.trainee import Goal, trainee_of

    work = {**run.work, "layers": run.work["layers"] or usual_layers(run.method)}
    texts, served = run.texts()
    trainee_of(run.method).check(Goal(run.method, work["depth"], work["words"], work["layers"]), run.k)
    shape = shape_of(find_target(_named(run.target)))
    check_size(run.method, run.work["layers"], work["words"], shape.layers, shape.vocab)
    made = plan(run.method, shape, find_gpu(run.gpu), TrainingWork(texts=texts, served=served, **work))
    if as_json:
        print_json({"target": run.target, "gpu": run.gpu, **made.as_json()})
    else:
        show_plan(output_console(), made, run.target, run.gpu)


def show_plan(console: Console, made: TrainingPlan, target: str, gpu: str) -> None:
    """Print one line per part, then the basis of the figures."""
    fast, slow = made.training_minutes
    table = Table(box=None, show_header=False)
    table.add_row("texts", f"{made.texts:,}, about {_amount(made.tokens)} tokens")
    table.add_row("answers", f"about {_time(made.answer_minutes)}")
    table.add_row("training", f"{made.steps:,} steps, {_span(fast, slow)}")
    table.add_row("memory", f"{made.memory_gb:,.0f} GB" + ("" if made.fits else f": more than one {gpu} has"))
    lengths = ", ".join(f"{name} {length:.2f}" for name, length in made.lengths.items())
    table.add_row("acceptance", f"length at K={made.k}: {lengths or 'not measured'}")
    console.print(f"[bold]{made.method}[/bold] for {target} on one {gpu}", table, sep="\n")
    for line in made.basis:
        console.print(line, style="dim", soft_wrap=True)


def _time(minutes: float) -> str:
    return f"{minutes / 60:,.1f} hours" if minutes >= 90 else f"{minutes:.0f} minutes" if minutes >= 1.5 else "a minute"


def _span(fast: float, slow: float) -> str:
    return _time(fast) if _time(fast) == _time(slow) else f"{_time(fast)} to {_time(slow)}"


def _amount(tokens: float) -> str:
    return f"{tokens / 1e6:,.1f} million" if tokens >= 1e5 else f"{tokens:,.0f}"


def _named(target: str) -> str:
    if target != EMBEDDED:
        return target
    from augury.model.store import resolve

    return str(resolve(target, quiet=True))
