"""Findings as GitHub's workflow commands: lines that the runner turns into annotations of a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from augury.tools.doctor.examine import Examination
from augury.tools.doctor.findings import Finding
from augury.tools.shared.safe_text import safe_text

COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def annotated(examinations: Sequence[Examination]) -> Iterator[str]:
    """One line a finding, errors first: a step shows ten of each kind."""
    found = [(one, finding) for one in examinations for finding in one.findings]
    rank = list(COMMANDS)
    ordered = sorted(found, key=lambda pair: rank.index(pair[1].severity))
    yield from dict.fromkeys(_line(*pair) for pair in ordered)  # a file may be named twice, and be in a directory too


def _line(examination: Examination, finding: Finding) -> str:
    line, column = examination.place(finding.start)
    last_line, last_column = examination.place(max(finding.end, finding.start))
    place = {"file": examination.name, "line": line, "endLine": last_line}
    if line == last_line:  # GitHub takes columns within one line alone
        place |= {"col": column, "endColumn": last_column}
    place |= {"title": f"augury doctor: {finding.id}"}
    told = ",".join(f"{name}={_property(value)}" for name, value in place.items() if value)
    message = f"{finding.message.rstrip('.')}: {finding.why} Fix: {finding.fix}"
    return f"::{COMMANDS[finding.severity]} {told}::{_data(message)}"


def _data(text: str) -> str:
    """As the runner reads it back; a line end would begin a command of its own."""
    kept = safe_text(text, keep="\r\n")
    return kept.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: object) -> str:
    return _data(str(value)).replace(":", "%3A").replace(",", "%2C")
