"""A progress bar for long work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from augury.tools.shared.pulse import Count, pulse


@contextmanager
def progress(first: str, total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr with the time left, or a line every few seconds if stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console, count = Console(stderr=True), Count(first, total)
    watched = console.is_terminal
    with (
        Progress(*columns, console=console, disable=not watched, transient=True) as progress,
        pulse(count.line, quiet=watched),
    ):
        task = progress.add_task(first, total=total)
        begun = False

        def tick(what: str) -> None:
            nonlocal begun
            progress.update(task, description=what, advance=int(begun))
            count.what = what
            count.done += int(begun)
            begun = True

        yield tick
