"""Errors in a server's log: the one that ended its start or run, among tracebacks that each process repeats."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# The prefix of a traceback line: process, level, time, file. A container may write its own time first.
PREFIX = re.compile(
    r"^(?:.{0,80}?\([A-Z][\w ]*?(?:pid=\d+|rank=\d+)[^)]*\)\s?)?(?:.{0,40}?\b(?:ERROR|CRITICAL)\b[ :]+"
    r"(?:\d\d-\d\d \d\d:\d\d:\d\d )?(?:\[[^\]]+\] ?)?)?"
)
RAISED = re.compile(
    r"^(?:[a-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Failure|Interrupt|Exit|NotFound))\b\s*(?::\s*(.*))?$"
)
INVALID = re.compile(r"^(\d+ validation errors? for \w+)\s*$")  # pydantic's; the details are on the lines below
USAGE = re.compile(r"^(?:vllm|augury|usage|api_server\.py)\b.*?: error: (.*)")  # from argparse
STARTED = re.compile(
    r"Application startup complete|Uvicorn running on|Starting vLLM API server|serving \S+ on \w+, context"
)
DIED = re.compile(r"EngineDeadError|EngineCore encountered a fatal error|EngineCore died|Engine core proc \S+ died")
# Errors caused by another one: they say that something ended, not why.
ECHOES = (
    "Engine core initialization failed",
    "Engine process failed to start",
    "WorkerProc initialization failed",
    "EngineCore encountered an issue",
    "cancelled",
    "Executor failed",
)
ECHO_KINDS = ("EngineDeadError", "KeyboardInterrupt", "SystemExit", "CancelledError")
LONGEST = 400


@dataclass(slots=True)
class LogErrors:
    """The errors of one run, collected line by line."""

    inside: bool = False  # within a traceback
    invalid: str = ""
    error: str | None = None  # the first that another did not cause
    echo: str | None = None
    started: bool = False
    dead: bool = False
    raised: list[str] = field(default_factory=list)

    def take(self, line: str) -> None:
        """Process the next line of the log."""
        if STARTED.search(line):
            self.started, self.error, self.echo = True, None, None  # it started despite any earlier errors
        self.dead = self.dead or (self.started and bool(DIED.search(line)))
        plain = PREFIX.sub("", line.rstrip("\n"), count=1)
        if "Traceback (most recent call last)" in plain:
            self.inside = True
        elif self.invalid:
            self._keep(f"{self.invalid}: {plain.strip()}")
            self.invalid = ""
        elif found := USAGE.match(plain):
            self._keep(found[1])
        elif self.inside and not plain.startswith((" ", "\t")):
            self._ended(plain)

    def _ended(self, plain: str) -> None:
        """Record the error if this line is the last of the traceback."""
        if found := RAISED.match(plain):
            self.inside = False
            said = f"{found[1]}: {found[2]}" if found[2] else found[1]
            if INVALID.match(found[2] or ""):
                self.invalid = said
            else:
                self._keep(said, found[1])
        elif found := INVALID.match(plain.split(": ", 1)[-1]):
            self.inside, self.invalid = False, found[1]

    def _keep(self, said: str, kind: str = "") -> None:
        said = " ".join(said.split())[:LONGEST]
        echo = kind in ECHO_KINDS or any(word in said for word in ECHOES)
        if echo:
            self.echo = self.echo or said
        else:
            self.error = self.error or said

    @property
    def fatal(self) -> str | None:
        """The error that ended the start or the running engine; None if it did not end, as after a request's error."""
        if self.started and not self.dead:
            return None
        return self.error or self.echo
