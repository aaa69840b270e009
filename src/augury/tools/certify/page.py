"""A certificate as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from augury.tools.certify.report import ComparisonReport
from augury.tools.certify.screen import acceptance_line, difference_line, law_line, number
from augury.tools.shared.html import h2, page, table
from augury.tools.shared.svg import Bar, Point, bars, scatter

if TYPE_CHECKING:
    from augury.tools.certify.proof import ProofCertificate

WORDS = ("holds", "does not hold", "nothing certified")


def report_page(report: ComparisonReport) -> str:
    """The page of a comparison."""
    parts = [_verdict(report.exit_code, report.subject)]
    if report.equalities:
        rows = [(e.setting, e.answers, e.equal, e.tokens, len(e.differences)) for e in report.equalities]
        parts += [h2("Token for token"), table(("setting", "answers", "equal", "tokens", "different"), rows)]
    for found in (found for equality in report.equalities for found in equality.differences):
        parts.append(f'<p class="{"note" if found.near_tie else "bad"}">{escape(difference_line(found))}</p>')
    if report.law is not None and report.law.places:
        parts += _law_parts(report)
    if report.acceptance and report.acceptance["num_drafts"]:
        curve = [Bar(str(i), share) for i, share in enumerate(report.acceptance["per_position"], 1)]
        parts += [h2("Acceptance"), f"<p>{escape(acceptance_line(report.acceptance))}</p>"]
        parts.append(bars(curve, "position in the draft", "accepted of drafted there", 1.0))
    parts += [f'<p class="note">{escape(note)}</p>' for note in report.notes]
    return page(report.subject, parts, report.conditions, report.seconds)


def _law_parts(report: ComparisonReport) -> list[str]:
    law = report.law
    assert law is not None
    points, rows = [], []
    for i, place in enumerate(law.places):
        loud = law.adjusted[i] < law.alpha
        size = sum(cell.observed for cell in place.cells) or 1
        where = f"{place.setting}, prompt {place.prompt + 1}, after {place.beginning!r}"
        points += [
            Point(
                c.expected / size,
                c.observed / size,
                f"{where}: {'the rest' if c.label is None else repr(c.label)}",
                loud,
            )
            for c in place.cells
        ]
        rows.append(
            (
                place.setting,
                place.prompt + 1,
                repr(place.beginning),
                int(size),
                number(place.fit.statistic),
                place.fit.df,
                number(place.fit.p),
                number(law.adjusted[i]),
                f"{law.finds(place.fit):.3f}",
            )
        )
    names = ("setting", "prompt", "behind", "samples", "G", "df", "p", "p, Holm", "finds TV")
    head = [h2("Sampled tokens against plain sampling"), f"<p>{escape(law_line(law))}</p>"]
    return [*head, scatter(points, "expected share", "observed share"), table(names, rows)]


def certificate_page(found: ProofCertificate) -> str:
    """The page of the exact proof."""
    kinds = {"standard": "a", "block": "b"}
    chains = [
        Bar(f"{line.rule[0]} K={line.shape[-1]}", float(line.accepted), kinds.get(line.rule, "c"))
        for line in found.lossless
        if line.rule in kinds and line.drafts == "sampled" and line.transform == "none" and line.shape in CHAINS
    ]
    chains.sort(key=lambda bar: (bar.label[-1], bar.label[0] != "s"))
    rows = [
        (x.rule, x.drafts, x.shape, x.transform, x.vocab, x.cases, x.total_variation, x.accepted)
        for x in found.lossless
    ]
    lossy = [(x.rule, "LOSSY", f"{x.total_variation:.4f}", f"{x.accepted:.4f}") for x in found.lossy]
    names = ("rule", "drafts", "shape", "transform", "tokens", "cases", "total variation", "expected accepted")
    parts = [
        _verdict(found.exit_code, "Exact enumeration of the acceptance rules"),
        f"<p>{escape(found.arithmetic)}</p>",
        h2("Expected accepted drafts: standard (s) and block (b), sampled chains"),
        bars(chains, "rule and length of the chain", "expected accepted drafts"),
        h2("Lossy by name: p = (1/3, 2/3), q = (2/3, 1/3), 3 drafts"),
        bars([Bar(_brief(x.rule), float(x.total_variation), "b") for x in found.lossy], "rule", "bias (TV)"),
        table(("rule", "", "bias (total variation)", "expected accepted"), lossy),
        h2(f"{len(found.lossless)} lossless lines, {found.cases:,} cases"),
        table(names, rows),
    ]
    return page("Augury: exact certificate", parts, found.record()["conditions"], found.seconds)


CHAINS = tuple(f"chain {length}" for length in range(1, 5))


def _brief(rule: str) -> str:
    """A rule's name, short enough to fit below its bar."""
    return rule.replace("_block with ", "+").split(" ")[0]


def _verdict(code: int, subject: str) -> str:
    return f'<h1>{escape(subject)}: <span class="verdict v{code}">{WORDS[code]}</span></h1>'
