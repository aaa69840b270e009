"""Fixes what can be fixed, one finding at a time; a change that makes anything worse is undone."""

from __future__ import annotations

import difflib
import re
from collections import Counter

from augury.config.errors import ConfigError
from augury.tools.doctor.examine import CheckedAgainst, Examination, examine
from augury.tools.doctor.found.places import Edit

MOST_CHANGES = 200
MOST_WORK = 10_000  # commands examined again, all attempts together


def mended(examination: Examination, asked: CheckedAgainst) -> Examination:
    """The text with every fixable finding fixed, examined again."""
    now = examination
    tried: set[tuple[str, int]] = set()
    for _ in range(MOST_CHANGES):
        better = _one_better(now, asked, tried)
        if better is None:
            return now
        now = better
    return now


def _one_better(now: Examination, asked: CheckedAgainst, tried: set[tuple[str, int]]) -> Examination | None:
    for finding in now.findings:
        if not finding.edits or len(tried) * len(now.commands) > MOST_WORK:
            continue
        text = changed(now.text, finding.edits)
        if (finding.id, hash(text)) in tried:
            continue
        tried.add((finding.id, hash(text)))
        try:
            after = examine(text, now.name, asked)
        except ConfigError:
            continue
        if len(after.commands) == len(now.commands) and _improved(now, after, finding.id):
            return after
    return None


def _improved(before: Examination, after: Examination, name: str) -> bool:
    """Whether a finding of this kind is gone; others may surface, but no more broken JSON and no more missing K."""
    was, now = (Counter(f.id for f in e.findings) for e in (before, after))
    return now[name] < was[name] and now["json-broken"] <= was["json-broken"] and now["k-missing"] <= was["k-missing"]


def changed(text: str, edits: tuple[Edit, ...]) -> str:
    """Apply edits, last first; two that overlap are not both made."""
    end = len(text) + 1
    for edit in sorted((_tidy(text, edit) for edit in edits), reverse=True):
        if edit.end <= end:
            text = text[: edit.start] + edit.text + text[edit.end :]
            end = edit.start
    return text


def _tidy(text: str, edit: Edit) -> Edit:
    """Widen the removal of a flag to the blanks before it, and to its whole line if it is alone there."""
    before, behind = text[: edit.start], text[edit.end :]
    if edit.text or not re.match(r"\s|\\\r?\n|$", behind) or not re.search(r"(^|\s)$", before):
        return edit
    start = len(before.rstrip(" \t"))
    rest = re.match(r"[ \t]*\\\r?\n", behind)
    if before[:start].endswith("\n") and rest:
        return Edit(start, edit.end + rest.end(), "")
    if re.match(r"[ \t]*(\r?\n|$)", behind):
        ahead = re.search(r"[ \t]*\\\r?\n$", before[:start])
        return Edit(ahead.start() if ahead else start, edit.end, "")
    return Edit(start, edit.end, "")


def unified(before: Examination, after: Examination) -> str:
    """The change as a diff."""
    old, new = (one.text.splitlines(keepends=True) for one in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{before.name}", f"b/{before.name}")
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)
