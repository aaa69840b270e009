"""Between the engine's client and the metrics: an error in the metrics must never cost an answer."""

from __future__ import annotations

import logging
from typing import Any

from augury.serve.jobs import Ear, Job
from augury.serve.wire import Message

logger = logging.getLogger("augury")


class SafeEar:
    """Forwards every event; an error in its handler is counted, and logged when it happens for the first time."""

    def __init__(self, ear: Ear) -> None:
        self._ear = ear
        self._told: set[tuple[str, type[BaseException]]] = set()

    def taken(self, job: Job) -> None:
        """The engine has queued a job."""
        self._tell("taken", job)

    def heard(self, message: Message) -> None:
        """The engine has sent a step or a beat."""
        self._tell("heard", message)

    def updated(self, job: Job, update: Message) -> None:
        """An answer has new output."""
        self._tell("updated", job, update)

    def aborted(self, job: Job, reason: str) -> None:
        """A job has ended early."""
        self._tell("aborted", job, reason)

    def fault(self, where: str) -> None:
        """The server has caught an error of its own."""
        self._tell("fault", where)

    def _tell(self, what: str, *about: Any) -> None:
        try:
            getattr(self._ear, what)(*about)
        except Exception as error:
            self._failed(what, error)

    def _failed(self, what: str, error: Exception) -> None:
        if (what, type(error)) not in self._told:
            self._told.add((what, type(error)))
            logger.error("metrics are incomplete from here on: %s failed", what, exc_info=error)
        if what != "fault":
            self.fault("figures")
