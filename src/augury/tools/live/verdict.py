"""One line of a check, and the knowledge's verdict on its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from augury.tools.knowledge.base import knowledge
from augury.tools.knowledge.conditions import KnownFacts, holds
from augury.tools.live.facts import sentence

State = Literal["pass", "warn", "fail", "unknown", "note"]
STATES: dict[str, State] = {"error": "fail", "warning": "warn", "note": "note"}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a check."""

    name: str
    state: State
    figure: str
    against: str = ""
    fix: str = ""  # what to do if something is wrong
    entry: str = ""  # id of the knowledge entry with more detail

    def record(self) -> dict[str, str]:
        """The check as JSON."""
        told = asdict(self)
        return told | {"knowledge": told.pop("entry")}


def verdict(facts: Mapping[str, Any], *names: str) -> tuple[State, str, str]:
    """State, fix and id of the first entry that holds; otherwise "pass", or "unknown" if one lacks a fact."""
    entries = [knowledge("bands")[name] for name in names]
    answers = [(entry, holds(entry.condition, KnownFacts(facts))) for entry in entries]
    for entry, answer in answers:
        if answer:
            return STATES[entry.severity], sentence(entry.fix, facts), entry.id
    return ("unknown" if any(answer is None for _, answer in answers) else "pass"), "", ""


def sane(facts: Mapping[str, Any]) -> bool:
    """Whether the counters are complete and possible."""
    return not facts["counters_missing"] and not facts["counters_impossible"]
