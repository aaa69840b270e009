"""The doctor on commands from public reports: the cause named where there was one, and no error where it worked."""

from __future__ import annotations

import pytest
from doctor_reports import REPORTS, Report

from augury.tools.doctor.examine import CheckedAgainst, examine

OUTCOMES = {"refused", "crashed", "wrong", "slow", "works"}
LEAST_RIGHT = 36


def said(report: Report) -> dict[str, str]:
    """What is said at least as a warning, by id."""
    name = "run.sh" if "\n" in report.command else ""
    found = examine(report.command, name, CheckedAgainst(report.release)).findings
    return {finding.id: finding.severity for finding in found if finding.severity != "note"}


def right(report: Report) -> bool:
    if report.outcome == "works":
        return "error" not in said(report).values()
    return any(name in said(report) for name in report.ids)


def test_most_reports_are_foreseen() -> None:
    missed = [report.source for report in REPORTS if not right(report)]
    assert len(REPORTS) >= 40 and {report.outcome for report in REPORTS} == OUTCOMES
    assert len(REPORTS) - len(missed) >= LEAST_RIGHT, missed


@pytest.mark.parametrize("report", [r for r in REPORTS if r.ids], ids=lambda report: report.source)
def test_the_cause_is_named(report: Report) -> None:
    assert right(report), said(report)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.source)
def test_there_is_no_false_error(report: Report) -> None:
    """An error means that it does not start or dies: never where it worked, or went on with worse results."""
    errors = {name for name, severity in said(report).items() if severity == "error"}
    if report.outcome in ("works", "wrong", "slow"):
        assert not errors
    else:
        assert errors <= set(report.ids), errors - set(report.ids)
