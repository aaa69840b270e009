"""Grammars are compiled beside the engine's loop: a heavy one holds up its own request and nobody's stream."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.engine.grammar import Grammar

SECONDS = 10.0  # a request may wait for its grammar
AT_ONCE = 2  # an abandoned compilation cannot be stopped, and counts until it ends


class Compiled(NamedTuple):
    """A grammar for a job, or the error that it ended in."""

    job: int
    grammar: Grammar | None
    error: Exception | None = None


class Compiler:
    """Compiles in threads (llguidance lets go of the interpreter), first come, first served."""

    def __init__(self, compile: Callable[[SamplingParams], Grammar | None]) -> None:
        self._compile = compile
        self._queue: deque[tuple[int, SamplingParams]] = deque()
        self._done: deque[Compiled] = deque()  # filled by the threads
        self._deadlines: dict[int, float] = {}  # of jobs that wait for theirs
        self._threads: list[threading.Thread] = []

    @property
    def busy(self) -> bool:
        """Whether a job waits for its grammar."""
        return bool(self._deadlines)

    def submit(self, job: int, params: SamplingParams) -> None:
        """Have a job's grammar compiled."""
        self._deadlines[job] = time.monotonic() + SECONDS
        self._queue.append((job, params))
        self._start_threads()

    def forget(self, job: int) -> None:
        """Nobody waits for this job any more."""
        self._deadlines.pop(job, None)

    def finished(self) -> list[Compiled]:
        """What has come of jobs since last asked, those among them that took too long."""
        self._start_threads()
        found = []
        while self._done:
            one = self._done.popleft()
            if self._deadlines.pop(one.job, None) is not None:
                found.append(one)
        now = time.monotonic()
        for job in [job for job, deadline in self._deadlines.items() if deadline < now]:
            del self._deadlines[job]
            found.append(Compiled(job, None, ConfigError(self._why_late(job))))
        return found

    def _why_late(self, job: int) -> str:
        if any(waiting == job for waiting, _ in self._queue):
            return f"structured_outputs: others' grammars took all of {SECONDS:g} seconds; try again later."
        return f"structured_outputs: its grammar was not compiled within {SECONDS:g} seconds; ask for a simpler one."

    def _start_threads(self) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        while self._queue and len(self._threads) < AT_ONCE:
            job, params = self._queue.popleft()
            if job in self._deadlines:
                # A daemon, so that the process need not wait for it at its end.
                thread = threading.Thread(target=self._work, args=(job, params), name="grammar", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self, job: int, params: SamplingParams) -> None:
        try:
            self._done.append(Compiled(job, self._compile(params)))
        except Exception as error:  # the loop tells refusals from errors of our own
            self._done.append(Compiled(job, None, error))
