"""The doctor's findings on one object; faults that it had before do not block an update."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from augury.config.facts import names_alone
from augury.tools.doctor.examine import CheckedAgainst, Examination, examine
from augury.tools.doctor.webhook.objects import written


class ToldFinding(NamedTuple):
    """A finding, its path in the object (`field`), and whether the object already had it before the update."""

    id: str
    severity: str
    message: str
    fix: str
    field: str
    release: str
    before: bool = False


class AdmissionCase(NamedTuple):
    """An object to be judged and what it replaces, as JSON, and the release for images that name none."""

    new: str
    old: str | None = None
    release: str | None = None


def judge(case: AdmissionCase) -> list[ToldFinding]:
    """The errors and warnings of an object; a ConfigError if it cannot be read."""
    # A server must not open paths that its clients name: `--model /etc` would reveal what is there.
    with names_alone():
        found = list(_told(case.new, case.release))
        if case.old is None or not found:
            return found
        known = {(one.id, one.message) for one in _told(case.old, case.release)}
    return [one._replace(before=(one.id, one.message) in known) for one in found]


def _told(value: str, release: str | None) -> Iterator[ToldFinding]:
    text = written(json.loads(value))
    for examination, of_release in _examined(text.text, release):
        for finding in examination.findings:
            if finding.severity != "note":
                where = text.path(examination.place(finding.start)[0])
                said = finding.message, finding.fix, where, of_release
                yield ToldFinding(finding.id, finding.severity, *said)


def _examined(text: str, release: str | None) -> Iterator[tuple[Examination, str]]:
    """Examinations by release: the one the image names, otherwise the given one, otherwise the newest known."""
    first = examine(text, "object.yaml")
    if release is not None and any(one.named_by == "nobody" for one in first.commands):
        second = examine(text, "object.yaml", CheckedAgainst(release))
        first.commands = [
            b if a.named_by == "nobody" else a for a, b in zip(first.commands, second.commands, strict=True)
        ]
    for name in dict.fromkeys(one.release for one in first.commands):
        here = [one for one in first.commands if one.release == name]
        yield Examination(first.name, first.text, here), name or ""
