"""The progress of `augury certify`: a bar on a terminal, a line now and then in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from augury.tools.shared.pulse import Count, pulse


class ProofBar:
    """One line on standard error: the current work, how far it is, and the time left."""

    def __init__(self, inner: Any, quiet: bool) -> None:
        self.quiet = quiet
        self._inner = inner
        self._task: Any = None
        self._count = Count("loading", 1)

    def begin(self, what: str, total: int) -> None:
        """Begin a new piece of work in place of the current one."""
        if self._task is not None:
            self._inner.remove_task(self._task)
        self._task, self._count = self._inner.add_task(what, total=total), Count(what, total)
        self._inner.start()

    def step(self, count: int = 1) -> None:
        """Count steps of the current work as done."""
        self._inner.advance(self._task, count)
        self._count.done += count

    def line(self) -> str:
        """The progress as a line of text, for a pipe."""
        return self._count.line()


@contextmanager
def watched(quiet: bool) -> Iterator[ProofBar]:
    """A progress bar on a terminal; it starts with the first piece of work, since loading has its own."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    inner = Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True)
    bar = ProofBar(inner, quiet)
    try:
        with pulse(bar.line, quiet=quiet or console.is_terminal):
            yield bar
    finally:
        inner.stop()
