"""Turns facts and problems into findings: every entry of the knowledge is tested against the command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from augury.config.versions import Version
from augury.tools.doctor.arguments import ReadArguments
from augury.tools.doctor.found.places import Edit
from augury.tools.doctor.problems import Problem
from augury.tools.doctor.refused import anchor
from augury.tools.knowledge.base import LINTED, Entry, Severity, knowledge
from augury.tools.knowledge.conditions import KnownFacts, holds


class Finding(NamedTuple):
    """Something found in a command."""

    id: str
    severity: Severity
    message: str
    why: str
    fix: str
    source: str
    start: int
    end: int
    edits: tuple[Edit, ...] = ()


@cache
def _asked(tool: str, release: Version | None) -> tuple[tuple[Entry, str], ...]:
    """The entries that apply to a release, each with the name of the problem it reports, or an empty string."""
    entries = [entry for entry in knowledge(*LINTED).values() if entry.linted and tool in entry.tools]
    covering = [entry for entry in entries if release is None or entry.covers(release)]
    return tuple((entry, _problem_in(entry.condition)) for entry in covering)


def _problem_in(condition: Mapping[str, Any]) -> str:
    found = re.search(r"'problem': '([\w-]+)'", str(condition))
    return found[1] if found else ""


def findings(
    args: ReadArguments, known: KnownFacts, problems: list[Problem], release: Version | None
) -> Iterator[Finding]:
    """The findings for one command."""
    for entry, name in _asked(args.found.tool, release):
        for problem in problems if name else ():
            known.problem = problem.name
            if problem.name == name and holds(entry.condition, known):
                edits = [] if args.found.computed else problem.edits
                yield _finding(entry, {**known.facts, **problem.says}, problem.start, problem.end, edits)
        known.problem = None
        if not name and holds(entry.condition, known):
            start, end = _pointed(args, entry)
            yield _finding(entry, known.facts, start, end, _changed(args, entry))


class _Known(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return "?"


def _finding(entry: Entry, facts: Mapping[str, Any], start: int, end: int, edits: list[Edit]) -> Finding:
    words = _Known(facts)
    message, why, fix = (text.format_map(words) for text in (entry.message, entry.why, entry.fix))
    return Finding(entry.id, entry.severity, message, why, fix, entry.source, start, end, tuple(edits))


def _pointed(args: ReadArguments, entry: Entry) -> tuple[int, int]:
    for name in entry.at:
        flag = args.flag(name.removeprefix("--")) if name.startswith("--") else None
        setting = args.keys.get(name)
        variable = args.found.environment.get(name.removeprefix("$"))
        if flag is not None:
            return flag.start, flag.stop
        if variable is not None and name.startswith("$"):
            return variable.start, variable.end
        if setting is not None:
            return setting.start, setting.end
    return anchor(args) if args.speculates else (args.found.start, args.found.end)


def _changed(args: ReadArguments, entry: Entry) -> list[Edit]:
    """The edits an entry asks for; none if what they change is not there."""
    change = entry.change
    if change is None or args.found.computed:
        return []
    if change.drop_key is not None and change.drop_key in args.keys:
        return args.keys[change.drop_key].drop()
    if change.drop_flag is not None:
        return [edit for flag in args.flags if flag.name == change.drop_flag for edit in flag.removal()]
    for name, value in (change.set_key or {}).items():
        if name in args.keys:
            return args.keys[name].set(value)
    return []
