"""Shows a training run: a progress bar, a table of the result, and its curve."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from rich.progress import Progress

PAUSE = 10.0  # seconds between lines if stderr is not a terminal
ROOM_FOR_TIME, ROOM_FOR_BAR = 60, 72  # columns: the longest description has 36, a step count 13


@contextmanager
def said(quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Report progress on stderr: a bar with the time left, or an occasional line in a pipe."""
    console = Console(stderr=True)
    with bar(console, disable=not console.is_terminal or quiet) as bars:
        tasks: dict[str, Any] = {}
        last = 0.0

        def tell(words: str, done: int, total: int) -> None:
            nonlocal last
            part = words.split(":")[0]
            if part not in tasks:
                tasks[part] = bars.add_task(words, total=total)
            bars.update(tasks[part], description=words, completed=done, total=total)
            if not console.is_terminal and not quiet and (time.monotonic() - last > PAUSE or done == total):
                last = time.monotonic()
                print(f"{words} ({done} of {total})", file=sys.stderr, flush=True)

        yield tell


def bar(console: Console, disable: bool = False) -> Progress:
    """A progress display whose bar takes the remaining width; narrow terminals have no bar."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), MofNCompleteColumn()]
    if console.width >= ROOM_FOR_TIME:
        columns.append(TimeRemainingColumn())
    if console.width >= ROOM_FOR_BAR:
        columns.insert(1, BarColumn(bar_width=None))
    return Progress(*columns, console=console, disable=disable, expand=console.width >= ROOM_FOR_BAR)


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the result of a training run."""
    best = result["best"]
    if best is None:
        console.print("Nothing was validated: the run ended before the first validation.")
        return
    heat = result["conditions"]["temperature"]
    drawn = f", temperature {heat:g}" if heat else ""
    table = Table("held out", f"acceptance length, K={result['k']}{drawn}", "accepted at each position", box=None)
    for name, length in best["length"].items():
        shares = " ".join(f"{100 * share:.0f}" for share in best["by_position"][name])
        table.add_row(name, f"{length:.2f}", f"{shares} %")
    console.print(table)
    gate = f"; gate {result['gate']:.0%}" if result["gate"] is not None else ""
    console.print(
        f"{result['texts']} answers, {result['tokens']} tokens, {result['steps']} steps in {result['seconds']:.0f} s"
        f"{gate}; best at step {best['step']}: {result['drafter']}",
        soft_wrap=True,
        style="dim",
    )


def draw(result: dict[str, Any], path: Path) -> None:
    """Plot loss and acceptance over the steps, if matplotlib is installed."""
    try:
        from augury.tools.shared.plots import figure, save, tidy

        made, ((left, right),) = figure(11, 4.2, columns=2)
    except ImportError:
        return
    history = result["history"]
    steps = [line["step"] for line in history]
    left.plot(steps, [line["loss"] for line in history], marker="o", markersize=3)
    tidy(left, "Loss", "step")
    for name in history[-1]["length"] if history else ():
        right.plot(steps, [line["length"][name] for line in history], marker="o", markersize=3, label=name)
    tidy(right, f"Acceptance length on held-out prompts, K={result['k']}", "step")
    words = f"{result['method']} for {result['target']}: {result['texts']} answers, {result['tokens']} tokens"
    save(made, path, words)
