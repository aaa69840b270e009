"""Which rules of the doctor cover a red cell: knowledge entries that name the suite, evaluated for this server."""

from __future__ import annotations

from typing import Any, NamedTuple

from augury.config.errors import ConfigError
from augury.config.versions import OLDEST, Version, version
from augury.methods.registry import ALIASES, METHODS
from augury.tools.certify.suite.cells import Subject
from augury.tools.knowledge.base import LINTED, knowledge
from augury.tools.knowledge.conditions import KnownFacts, holds

TOOLS = {"vLLM": "vllm", "Augury": "augury"}  # the servers that the doctor knows
# Facts that a suite itself brings about, which would otherwise have to be read from a command's flags.
DONE_BY = {"json": {"structured": True}, "tools": {"auto_tools": True}, "logprobs": {"logprobs": True}}


class Covered(NamedTuple):
    """Rules that apply, and rules that may."""

    certain: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()  # a fact that they need is not known


def covering(subject: Subject, suite: str, known: KnownFacts | None = None) -> Covered:
    """The rules for one suite; `known` is what the doctor read from the server's command, if it was given."""
    tool = TOOLS.get(subject.server)
    if tool is None:
        return Covered()
    number = _release(subject.release) if tool == "vllm" else None
    facts: dict[str, Any] = {"speculates": subject.speculates, "method": _method(subject.method)}
    facts |= {"version": number, **(known.facts if known else {}), **DONE_BY.get(suite, {})}
    asked = KnownFacts(facts, known.keys if known else {})
    found: dict[bool | None, list[str]] = {}
    for entry in knowledge(*LINTED).values():
        mine = suite in entry.suites and entry.linted and tool in entry.tools
        if mine and (number is None or entry.covers(number)):
            found.setdefault(holds(entry.condition, asked), []).append(entry.id)
    return Covered(tuple(found.get(True, ())), tuple(found.get(None, ())))


def facts_of(command: str | None) -> KnownFacts | None:
    """What the doctor reads from the command that started a server."""
    from augury.tools.doctor.examine import examine

    read = examine(command).commands if command else []
    return KnownFacts(read[0].facts, read[0].keys) if read else None


def _method(name: str) -> str | None:
    name = ALIASES.get(name, name)
    return name if name in METHODS else None


def _release(text: str) -> Version | None:
    """vLLM's release as a number; None if the server reports no such release, which leaves every entry possible."""
    try:
        found = version(text)
    except ConfigError:
        return None
    return found if version(OLDEST) <= found else None
