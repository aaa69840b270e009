"""A bar for work that takes a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(first: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error with the time left; nothing where standard error is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(first, total=total)
        begun = False

        def tick(what: str) -> None:
            nonlocal begun
            progress.update(task, description=what, advance=int(begun))
            begun = True

        yield tick
