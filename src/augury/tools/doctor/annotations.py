"""Findings as GitHub's workflow commands: lines that the runner turns into annotations of a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from augury.tools.doctor.examine import Examination
from augury.tools.doctor.findings import Finding
from augury.tools.shared.safe_text import safe_text

COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def annotated(examinations: Sequence[Examination]) -> Iterator[str]:
    """One line per finding, errors first, because GitHub shows only ten annotations of each kind per step."""
    found = [(one, finding) for one in examinations for finding in one.findings]
    rank = list(COMMANDS)
    ordered = sorted(found, key=lambda pair: rank.index(pair[1].severity))
    yield from dict.fromkeys(_line(*pair) for pair in ordered)  # one file may be given twice


def _line(examination: Examination, finding: Finding) -> str:
    line, column = examination.place(finding.start)
    last_line, last_column = examination.place(max(finding.end, finding.start))
    place = {"file": examination.name, "line": line, "endLine": last_line}
    if line == last_line:  # GitHub accepts columns only within a single line
        place |= {"col": column, "endColumn": last_column}
    place |= {"title": f"augury doctor: {finding.id}"}
    told = ",".join(f"{name}={_property(value)}" for name, value in place.items() if value)
    message = f"{finding.message.rstrip('.')}: {finding.why} Fix: {finding.fix}"
    return f"::{COMMANDS[finding.severity]} {told}::{_data(message)}"


def _data(text: str) -> str:
    """Escape text the way the runner decodes it; a raw line end would start a new command."""
    kept = safe_text(text, keep="\r\n")
    return kept.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: object) -> str:
    return _data(str(value)).replace(":", "%3A").replace(",", "%2C")
