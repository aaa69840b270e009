"""Cells as a table: a row for each server, model and method, a column for each suite."""

from __future__ import annotations

from collections.abc import Sequence

from augury.tools.certify.suite.cells import GREEN, GREY, RED, Cell, Subject
from augury.tools.certify.suite.run import SUITES

MARKS = {GREEN: "yes", RED: "NO", GREY: "-"}
HEADS = ("server", "model", "method")


def columns(cells: Sequence[Cell]) -> list[str]:
    """The suites that occur, those of this release first."""
    there = dict.fromkeys(cell.suite for cell in cells)
    return [name for name in SUITES if name in there] + [name for name in there if name not in SUITES]


def rows(cells: Sequence[Cell]) -> dict[Subject, dict[str, Cell]]:
    """The cells of each subject by suite, in the order they came."""
    found: dict[Subject, dict[str, Cell]] = {}
    for cell in cells:
        found.setdefault(cell.subject, {})[cell.suite] = cell
    return found


def heads(subject: Subject) -> tuple[str, str, str]:
    """The first columns of a row."""
    return f"{subject.server} {subject.release}", subject.model, subject.method


def explained(cells: Sequence[Cell]) -> list[Cell]:
    """Cells that need words: red ones, then grey ones."""
    return [cell for verdict in (RED, GREY) for cell in cells if cell.verdict == verdict]
