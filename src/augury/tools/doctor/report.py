"""The doctor's findings for programs: plain JSON, and SARIF 2.1.0 for code hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from augury import __version__
from augury.tools.doctor.examine import Examination, Examined
from augury.tools.doctor.findings import Finding
from augury.tools.knowledge.base import LINTED, Entry, knowledge, readable

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FAILED = 1


def exit_code(examinations: Sequence[Examination], strict: bool) -> int:
    """1 if there are errors (with `strict`: or warnings), otherwise 0."""
    bad = ("error", "warning") if strict else ("error",)
    return FAILED if any(f.severity in bad for e in examinations for f in e.findings) else 0


def counts(examinations: Sequence[Examination]) -> Counter[str]:
    """Findings by severity."""
    return Counter(finding.severity for one in examinations for finding in one.findings)


def as_record(examination: Examination) -> dict[str, Any]:
    """One text, its commands and its findings as JSON."""
    return {
        "name": examination.name,
        "commands": [_command(examination, command) for command in examination.commands],
        "findings": [_finding(examination, finding) for finding in examination.findings],
    }


def _command(examination: Examination, command: Examined) -> dict[str, Any]:
    line = examination.place(command.start)[0]
    against = {"vllm_version": command.release, "named_by": command.named_by}
    unchecked = [one._asdict() for one in command.unchecked]
    return {"program": command.program, "line": line, **against, "unchecked": unchecked}


def _finding(examination: Examination, finding: Finding) -> dict[str, Any]:
    said = {name: getattr(finding, name) for name in ("id", "severity", "message", "why", "fix", "source")}
    text = {"text": examination.text[finding.start : finding.end], "fixable": bool(finding.edits)}
    return {**said, **_region(examination, finding.start, finding.end), **text}


def _region(examination: Examination, start: int, end: int) -> dict[str, int]:
    line, column = examination.place(start)
    last_line, last_column = examination.place(max(end, start))
    return {"startLine": line, "startColumn": column, "endLine": last_line, "endColumn": last_column}


def sarif(examinations: Sequence[Examination]) -> dict[str, Any]:
    """A SARIF log of one run."""
    used = sorted({finding.id for one in examinations for finding in one.findings})
    entries = knowledge(*LINTED)
    rules = [_rule(entries[name]) for name in used]
    results = [_result(one, f, used.index(f.id)) for one in examinations for f in one.findings]
    left_open = [_left_open(one, command) for one in examinations for command in one.commands if command.unchecked]
    ran = {"executionSuccessful": True, "toolExecutionNotifications": left_open}
    driver = {"name": "augury doctor", "version": __version__, "semanticVersion": __version__, "rules": rules}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "invocations": [ran], "results": results}
        ],
    }


def _left_open(examination: Examination, command: Examined) -> dict[str, Any]:
    """What was not checked in a command, as a notification, since it is neither a fault nor a pass."""
    said = "; ".join(f"{one.what} ({one.why}; {one.how})" for one in command.unchecked)
    place = {
        "artifactLocation": {"uri": _uri(examination.name)},
        "region": _region(examination, command.start, command.start),
    }
    return {"level": "note", "message": {"text": f"not checked: {said}"}, "locations": [{"physicalLocation": place}]}


def _rule(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "shortDescription": {"text": entry.headline},
        "fullDescription": {"text": readable(entry.why)},
        "help": {"text": readable(f"{entry.fix} (source: {entry.source})")},
        "defaultConfiguration": {"level": entry.severity},
    }


def _result(examination: Examination, finding: Finding, rule: int) -> dict[str, Any]:
    artifact = {"uri": _uri(examination.name)}
    place = {"artifactLocation": artifact, "region": _region(examination, finding.start, finding.end)}
    result: dict[str, Any] = {
        "ruleId": finding.id,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": f"{finding.message}. Why: {finding.why} Fix: {finding.fix}"},
        "locations": [{"physicalLocation": place}],
    }
    if finding.edits:
        replacements = [
            {"deletedRegion": _region(examination, edit.start, edit.end), "insertedContent": {"text": edit.text}}
            for edit in finding.edits
        ]
        change = {"artifactLocation": artifact, "replacements": replacements}
        result["fixes"] = [{"description": {"text": finding.fix}, "artifactChanges": [change]}]
    return result


def _uri(name: str) -> str:
    path = PurePath(name).as_posix()
    return ("file://" if path.startswith("/") else "") + quote(path)
