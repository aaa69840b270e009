"""Progress for logs and pipes: a line on stderr every few seconds instead of a terminal's progress bar."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 5.0  # seconds between two lines; shorter work prints nothing


@contextmanager
def pulse(says: Callable[[], str], quiet: bool = False, every: float = EVERY) -> Iterator[None]:
    """Print what `says` returns every few seconds, unless `quiet`, as when a bar shows the same."""
    if quiet:
        yield
        return
    over = threading.Event()

    def beat() -> None:
        while not over.wait(every):
            print(says(), file=sys.stderr, flush=True)

    thread = threading.Thread(target=beat, name="pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Count:
    """Progress of some work, as a line with the time left."""

    def __init__(self, what: str, total: float, now: Callable[[], float] = time.monotonic) -> None:
        self.what, self.total, self.done = what, total, 0.0
        self._now, self._begun = now, now()

    def line(self) -> str:
        """What is being done, how much of it is done, the time so far, and the estimated time left."""
        spent = self._now() - self._begun
        parts = [f"{self.what}: {self.done:,.0f} of {self.total:,.0f}", f"{time_text(spent)} so far"]
        if 0 < self.done < self.total:
            parts.append(f"about {time_text(spent * (self.total - self.done) / self.done)} left")
        return ", ".join(parts)


def time_text(seconds: float) -> str:
    """A duration for people: two or three digits, in a suitable unit."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 99.5:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
