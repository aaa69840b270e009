"""Jobs that wait for their grammars: each is compiled in a process of its own, while the engine's loop continues."""

from __future__ import annotations

from typing import NamedTuple

from augury.config.sampling import SamplingParams
from augury.engine.grammar import Grammar
from augury.engine.grammar_jobs import Ticket
from augury.engine.intake import Intake


class Compiled(NamedTuple):
    """A job's compiled grammar, or the error that compiling it raised."""

    job: int
    grammar: Grammar | None
    error: Exception | None = None


class Compiler:
    """Tracks which job waits for which compilation."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._tickets: dict[int, tuple[Ticket, SamplingParams]] = {}
        self._done: list[Compiled] = []  # refused before they could wait

    @property
    def busy(self) -> bool:
        """Whether a job waits for its grammar."""
        return bool(self._tickets or self._done)

    def submit(self, job: int, params: SamplingParams, client: str = "") -> None:
        """Have a job's grammar compiled; clients take turns."""
        try:
            self._tickets[job] = (self._intake.grammars.ask(params, client), params)
        except Exception as error:  # the loop tells refusals from errors of our own
            self._done.append(Compiled(job, None, error))

    def forget(self, job: int) -> None:
        """Drop a job that its client no longer waits for."""
        self._done = [compiled for compiled in self._done if compiled.job != job]
        if (waiting := self._tickets.pop(job, None)) is not None:
            self._intake.grammars.pool.forget(waiting[0])

    def finished(self) -> list[Compiled]:
        """The results since the last call."""
        found, self._done = self._done, []
        if not self._tickets:
            return found
        self._intake.grammars.pool.poll()
        for job in [job for job, (ticket, _) in self._tickets.items() if ticket.done]:
            found.append(self._finish(job, *self._tickets.pop(job)))
        return found

    def _finish(self, job: int, ticket: Ticket, params: SamplingParams) -> Compiled:
        try:
            return Compiled(job, self._intake.grammars.begin(params, ticket.process()))
        except Exception as error:
            return Compiled(job, None, error)
