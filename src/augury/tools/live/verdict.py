"""One line of a check, and the verdict that the knowledge has on its figures."""

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
    fix: str = ""  # what to do, where something is wrong
    entry: str = ""  # of the knowledge, which says more

    def record(self) -> dict[str, str]:
        """For programs."""
        told = asdict(self)
        return told | {"knowledge": told.pop("entry")}


def verdict(facts: Mapping[str, Any], *names: str) -> tuple[State, str, str]:
    """Pass, or what the first entry that holds says; unknown where a fact is missing for one."""
    entries = [knowledge("bands")[name] for name in names]
    answers = [(entry, holds(entry.condition, KnownFacts(facts))) for entry in entries]
    for entry, answer in answers:
        if answer:
            return STATES[entry.severity], sentence(entry.fix, facts), entry.id
    return ("unknown" if any(answer is None for _, answer in answers) else "pass"), "", ""


def sane(facts: Mapping[str, Any]) -> bool:
    """Whether the counters are all there and can be true."""
    return not facts["counters_missing"] and not facts["counters_impossible"]
