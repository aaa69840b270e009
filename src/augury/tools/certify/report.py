"""The result of a comparison, for the terminal, JSON and HTML alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from augury.tools.certify.places import PlacesVerdict

HOLDS, FAILS, COULD_NOT = 0, 1, 2  # exit codes


class SuiteProgress(Protocol):
    """Where progress is reported."""

    def begin(self, what: str, total: int) -> None:
        """Begin a new piece of work of `total` steps."""
        ...

    def step(self, count: int = 1) -> None:
        """Count steps as done."""
        ...


class Unwatched:
    """No progress is shown."""

    def begin(self, what: str, total: int) -> None:
        """Nothing to show."""

    def step(self, count: int = 1) -> None:
        """Nothing to show."""


class PairScores(NamedTuple):
    """One run's scores of the two tokens; None where it reported none."""

    plain: float | None  # of the token that plain decoding took
    drafted: float | None  # of the token that speculation emitted


class Difference(NamedTuple):
    """The first token that differs between two answers, with the scores behind the choice."""

    setting: str
    prompt: int
    seed: int | None
    position: int  # in the answer, from 0
    plain_token: str
    drafted_token: str
    plain_run: PairScores | None
    drafted_run: PairScores | None
    gap: float | None  # plain run: its own token's score minus the other's
    apart: float | None  # the largest difference between the two runs' scores there
    bound: float  # how far rounding may move a score
    bound_is: str  # where that bound comes from
    near_tie: bool  # whether rounding explains it
    plain_id: int | None = None  # of the tokens, where known: a part of a character has no text of its own
    drafted_id: int | None = None

    def record(self) -> dict[str, Any]:
        """For --json."""
        runs = {name: run and run._asdict() for name, run in zip(("plain_run", "drafted_run"), self[6:8], strict=True)}
        return {**self._asdict(), **runs}


@dataclass(frozen=True, slots=True)
class Equality:
    """The comparison of answers under one setting, token by token."""

    setting: str
    answers: int
    tokens: int
    differences: list[Difference]

    @property
    def equal(self) -> int:
        """Number of answers that are the same to the last token."""
        return self.answers - len(self.differences)

    @property
    def holds(self) -> bool:
        """Whether every difference is a near-tie."""
        return all(difference.near_tie for difference in self.differences)

    def record(self) -> dict[str, Any]:
        """For --json."""
        return {
            "setting": self.setting,
            "answers": self.answers,
            "equal": self.equal,
            "tokens": self.tokens,
            "holds": self.holds,
            "differences": [difference.record() for difference in self.differences],
        }


@dataclass(slots=True)
class ComparisonReport:
    """A comparison of plain decoding with speculation."""

    subject: str  # one line: what was compared with what
    conditions: dict[str, Any]
    equalities: list[Equality] = field(default_factory=list)
    law: PlacesVerdict | None = None
    acceptance: dict[str, Any] | None = None  # speculation in figures, and `per_position`
    notes: list[str] = field(default_factory=list)
    drafted: bool | None = True  # whether anything was drafted at all; None: not known
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether speculation changed nothing, as far as was tested."""
        return all(equality.holds for equality in self.equalities) and (self.law is None or self.law.holds)

    @property
    def exit_code(self) -> int:
        """0: it holds; 1: it does not; 2: nothing was drafted, or too little was seen, so nothing was certified."""
        if not self.holds:
            return FAILS
        looked = any(equality.tokens for equality in self.equalities) or bool(self.law and self.law.places)
        untested = self.law is not None and not self.law.places  # asked for, but too little was seen
        return COULD_NOT if self.drafted is False or untested or not looked else HOLDS

    def record(self) -> dict[str, Any]:
        """For --json."""
        return {
            "verdict": ("holds", "does not hold", "nothing certified")[self.exit_code],
            "exit_code": self.exit_code,
            "subject": self.subject,
            "equality": [equality.record() for equality in self.equalities],
            "distribution": self.law.record() if self.law else None,
            "acceptance": self.acceptance,
            "notes": self.notes,
            "conditions": self.conditions,
            "seconds": round(self.seconds, 2),
        }


def first_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> int | None:
    """The first index at which two answers differ, or the length of the shorter; None if they are equal."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return i
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def gap_of(run: PairScores | None) -> float | None:
    """How far the plain token leads; None where a score is missing or NaN."""
    if run is None or run.plain is None or run.drafted is None:
        return None
    gap = run.plain - run.drafted
    return None if math.isnan(gap) else gap
