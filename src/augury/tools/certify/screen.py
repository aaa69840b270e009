"""Certificates for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from augury.tools.certify.places import POWER, PlacesVerdict
from augury.tools.certify.report import ComparisonReport, Difference, PairScores

if TYPE_CHECKING:
    from augury.tools.certify.proof import ProofCertificate
    from augury.verify.exact import CertificateLine

WORST = 12  # places listed


def visible(token: str) -> str:
    """A token in quotes; control characters and line breaks are escaped."""
    return repr(token)


def named(token: str, number: int | None) -> str:
    """A token in quotes, with its id where it is known."""
    return visible(token) if number is None else f"{visible(token)} (id {number})"


def number(value: float | None) -> str:
    """A figure in few characters."""
    if value is None:
        return "not offered"
    return str(value) if not math.isfinite(value) else f"{value:.4g}"


def verdict_line(code: int) -> Text:
    """The verdict in one word or two."""
    words, style = (("HOLDS", "bold green"), ("DOES NOT HOLD", "bold red"), ("NOTHING CERTIFIED", "bold yellow"))[code]
    return Text(words, style)


def _table(title: str, *columns: str) -> Table:
    """A table with names aligned left and figures (marked with #) right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE, pad_edge=False)
    for name in columns:
        table.add_column(name.removeprefix("#"), justify="right" if name.startswith("#") else "left")
    return table


# --- the exact certificate ---------------------------------------------------------------------------------------


def show_certificate(console: Console, found: ProofCertificate, full: bool) -> None:
    """Print the lines, the lossy rules below, and what was proved."""
    console.print(lossless_table(found.lossless, full))
    if not full:
        changes = dict.fromkeys(line.transform for line in found.lossless)
        console.print(f"Transforms: {', '.join(changes)}; --full gives each its own row.", style="dim", soft_wrap=True)
    for line in found.lossless:
        if not line.holds:
            console.print(f"does not hold: {line}", style="red", soft_wrap=True)
    table = _table(
        "LOSSY by name, measured: p = (1/3, 2/3), q = (2/3, 1/3), 3 sampled drafts",
        "rule",
        "",
        "#bias (TV)",
        "#accepted",
    )
    for line in found.lossy:
        table.add_row(line.rule, Text("LOSSY", "yellow"), f"{line.total_variation:.4f}", f"{line.accepted:.4f}")
    console.print(table)
    lengths = ", ".join(f"{rule} {length}" for rule, length in found.published.items())
    console.print(f"Expected accepted of two sampled drafts, same p and q: {lengths}.", soft_wrap=True)
    console.print(found.arithmetic, soft_wrap=True)
    ending = f" · {len(found.lossless)} lossless lines, {found.cases:,} cases, {found.seconds:.1f} s"
    console.print(verdict_line(found.exit_code) + Text(ending))


def lossless_table(lines: list[CertificateLine], full: bool) -> Table:
    """A table with one row per line, or one for all transforms of a rule, kind of draft and shape."""
    table = _table(
        "Exact enumeration",
        "rule",
        "drafts",
        "shape",
        "transform",
        "#cases",
        "#total\nvariation",
        "#expected\naccepted",
    )
    groups: dict[Any, list[CertificateLine]] = {}
    for line in lines:
        key = (line.rule, line.drafts, line.shape, line.vocab, line.transform if full else "")
        groups.setdefault(key, []).append(line)
    for group in groups.values():
        first, worst = group[0], max(line.total_variation for line in group)
        shape = first.shape if first.vocab == 3 else f"{first.shape}, {first.vocab} tokens"
        cases = sum(line.cases for line in group)
        held = "" if all(line.holds for line in group) else "red"
        table.add_row(
            first.rule,
            first.drafts,
            shape,
            _transforms(group),
            f"{cases:,}",
            str(worst),
            _range([line.accepted for line in group]),
            style=held,
        )
    return table


def _transforms(group: list[CertificateLine]) -> str:
    names = [line.transform for line in group]
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def _range(values: list[Fraction | float]) -> str:
    low, high = min(values), max(values)
    if len(values) == 1:
        return f"{low} ({float(low):.3f})" if isinstance(low, Fraction) and low.denominator > 1 else str(low)
    return f"{float(low):.3f}" if low == high else f"{float(low):.3f} to {float(high):.3f}"


# --- comparisons -------------------------------------------------------------------------------------------------


def show_report(console: Console, report: ComparisonReport) -> None:
    """Print what was compared, what differed, how the law was tested, and under which conditions."""
    console.print(Text(report.subject, "bold"))
    if report.equalities:
        console.print(equality_table(report))
    for difference in (found for equality in report.equalities for found in equality.differences):
        console.print(difference_line(difference), style="yellow" if difference.near_tie else "red", soft_wrap=True)
    if report.law is not None and report.law.places:
        console.print(places_table(report.law))
        console.print(law_line(report.law), soft_wrap=True)
    if report.acceptance and report.acceptance["num_drafts"]:
        console.print(acceptance_line(report.acceptance), soft_wrap=True)
    for note in report.notes:
        console.print(note, style="yellow", soft_wrap=True)
    console.print(Text(", ".join(f"{name} {value}" for name, value in report.conditions.items()), "dim"))
    console.print(verdict_line(report.exit_code) + Text(f" · {report.seconds:.1f} s"))


def equality_table(report: ComparisonReport) -> Table:
    """A table with one row per setting."""
    table = _table("Token for token", "setting", "#answers", "#equal", "#tokens", "#near-ties", "#unexplained")
    for found in report.equalities:
        near = sum(difference.near_tie for difference in found.differences)
        style = "" if found.holds else "red"
        cells = (found.answers, found.equal, found.tokens, near, len(found.differences) - near)
        table.add_row(found.setting, *(f"{cell:,}" for cell in cells), style=style)
    return table


def difference_line(found: Difference) -> str:
    """A difference in words: the tokens, their scores, and whether rounding explains it."""
    seed = "" if found.seed is None else f", seed {found.seed}"
    verdict = "a near-tie, within rounding" if found.near_tie else "NOT explained by rounding"

    def scores(run: PairScores | None) -> str:
        return "unknown" if run is None else f"{number(run.plain)} against {number(run.drafted)}"

    return (
        f"{found.setting}, prompt {found.prompt + 1}{seed}, token {found.position + 1}: "
        f"plain {named(found.plain_token, found.plain_id)}, "
        f"speculating {named(found.drafted_token, found.drafted_id)}; scores of the two: "
        f"plain run {scores(found.plain_run)}, speculating run {scores(found.drafted_run)}; "
        f"gap {number(found.gap)}; the runs' scores differ by at most "
        f"{number(found.apart)}; bound {number(found.bound)} ({found.bound_is}): {verdict}."
    )


def places_table(law: PlacesVerdict) -> Table:
    """A table of the places with the smallest p-values."""
    order = sorted(range(len(law.places)), key=lambda i: law.places[i].fit.p)
    title = f"Sampled tokens against plain sampling: {len(law.places)} places" + (
        f", the {WORST} most surprising" if len(law.places) > WORST else ""
    )
    table = _table(title, "setting", "prompt, after", "#samples", "#G / df", "#p", "#p, Holm", "#finds\nTV")
    for i in order[:WORST]:
        place, fit = law.places[i], law.places[i].fit
        behind = visible(place.beginning) if place.depth else "(start)"
        table.add_row(
            place.setting,
            f"{place.prompt + 1} {behind}",
            f"{sum(c.observed for c in place.cells):,.0f}",
            f"{fit.statistic:.1f} / {fit.df}",
            f"{fit.p:.2g}",
            f"{law.adjusted[i]:.2g}",
            f"{law.finds(fit):.3f}",
            style="" if law.adjusted[i] >= law.alpha else "red",
        )
    return table


def law_line(law: PlacesVerdict) -> str:
    """The result of all tests, and the shifts they could have detected, in words."""
    best, worst = _extremes(law.finds(place.fit) for place in law.places)
    return (
        f"{law.samples:,} sampled tokens; all places together: G {law.together.statistic:.1f}, df {law.together.df}, "
        f"p {law.together.p:.3g}. {len(law.adjusted)} tests, Holm, family-wise error {law.alpha:g}: "
        f"{'no' if law.holds else 'A'} difference found. Power: with {POWER:.0%} probability they find any shift "
        f"of total variation {law.finds(law.together):.3f} that is at all places, {best:.3f} at the best of them "
        f"alone, {worst:.3f} at the worst."
    )


def _extremes(values: Iterable[float]) -> tuple[float, float]:
    found = sorted(values)
    return found[0], found[-1]


def acceptance_line(figures: dict[str, Any]) -> str:
    """The acceptance figures in words."""
    curve = ", ".join(f"{share:.0%}" for share in figures["per_position"])
    return (
        f"{figures['num_drafts']:,} drafts, {figures['num_accepted_tokens']:,} of {figures['num_draft_tokens']:,} "
        f"drafted tokens accepted ({figures['acceptance_rate']:.0%}), acceptance length "
        f"{figures['acceptance_length']:.2f} with the extra token; accepted at each draft position: {curve}."
    )
