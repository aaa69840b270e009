"""A certificate as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from augury.certify.report import Report
from augury.certify.svg import Bar, Point, bars, scatter
from augury.certify.tables import acceptance_line, difference_line, law_line, number

if TYPE_CHECKING:
    from augury.certify.proof import Certificate

WORDS = ("holds", "does not hold", "nothing certified")
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #22262b; --faint: #6b7178; --rule: #e4e7ea;
  --a: #1b6ca8; --b: #b3541e; --good: #1d7a3c; --bad: #b3261e; --warn: #8a6100; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181c; --ink: #e6e8eb; --faint: #9aa1a9; --rule: #2c3138;
  --a: #5fb0e8; --b: #f0915a; --good: #5ecb83; --bad: #ff8a80; --warn: #e2b84d; } }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { font-weight: 700; } .v0 { color: var(--good); } .v1, .bad { color: var(--bad); }
.v2, .note { color: var(--warn); }
table { border-collapse: collapse; font-size: 13px; } th, td { padding: .2rem .6rem; text-align: left;
  border-bottom: 1px solid var(--rule); } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } .faint { color: var(--faint); font-size: 13px; }
svg { width: 100%; max-width: 40rem; } svg text { fill: var(--faint); font-size: 11px; }
.grid { stroke: var(--rule); } .same { stroke: var(--faint); stroke-dasharray: 4 3; }
.dot { fill: var(--a); fill-opacity: .55; } .loud { fill: var(--bad); }
.bar.a { fill: var(--a); } .bar.b { fill: var(--b); }
"""
Row = Sequence[object]


def report_page(report: Report) -> str:
    """A comparison."""
    parts = [_verdict(report.exit_code, report.subject)]
    if report.equalities:
        rows = [(e.setting, e.answers, e.equal, e.tokens, len(e.differences)) for e in report.equalities]
        parts += [_h2("Token for token"), _table(("setting", "answers", "equal", "tokens", "different"), rows)]
    for found in (found for equality in report.equalities for found in equality.differences):
        parts.append(f'<p class="{"note" if found.near_tie else "bad"}">{escape(difference_line(found))}</p>')
    if report.law is not None and report.law.places:
        parts += _law_parts(report)
    if report.acceptance and report.acceptance["num_drafts"]:
        curve = [Bar(str(i), share) for i, share in enumerate(report.acceptance["per_position"], 1)]
        parts += [_h2("Acceptance"), f"<p>{escape(acceptance_line(report.acceptance))}</p>"]
        parts.append(bars(curve, "position in the draft", "accepted of drafted there", 1.0))
    parts += [f'<p class="note">{escape(note)}</p>' for note in report.notes]
    return _page(report.subject, parts, report.conditions, report.seconds)


def _law_parts(report: Report) -> list[str]:
    law = report.law
    assert law is not None
    points, rows = [], []
    for i, place in enumerate(law.places):
        loud = law.adjusted[i] < law.alpha
        size = sum(cell.observed for cell in place.cells) or 1
        where = f"{place.setting}, prompt {place.prompt + 1}, behind {place.beginning!r}"
        points += [
            Point(
                c.expected / size,
                c.observed / size,
                f"{where}: {'the rest' if c.label is None else repr(c.label)}",
                loud,
            )
            for c in place.cells
        ]
        rows.append((
            place.setting, place.prompt + 1, repr(place.beginning), int(size), number(place.fit.statistic),
            place.fit.df, number(place.fit.p), number(law.adjusted[i]), f"{law.finds(place.fit):.3f}",
        ))  # fmt: skip
    names = ("setting", "prompt", "behind", "samples", "G", "df", "p", "p, Holm", "finds TV")
    head = [_h2("Sampled tokens against plain sampling"), f"<p>{escape(law_line(law))}</p>"]
    return [*head, scatter(points, "expected share", "observed share"), _table(names, rows)]


def certificate_page(found: Certificate) -> str:
    """The exact proof."""
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
        _h2("Expected accepted drafts: standard (s) and block (b), sampled chains"),
        bars(chains, "rule and length of the chain", "expected accepted drafts"),
        _h2("Lossy by name: p = (1/3, 2/3), q = (2/3, 1/3), 3 drafts"),
        bars([Bar(_brief(x.rule), float(x.total_variation), "b") for x in found.lossy], "rule", "bias (TV)"),
        _table(("rule", "", "bias (total variation)", "expected accepted"), lossy),
        _h2(f"{len(found.lossless)} lossless lines, {found.cases:,} cases"),
        _table(names, rows),
    ]
    return _page("Augury: exact certificate", parts, found.record()["conditions"], found.seconds)


CHAINS = tuple(f"chain {length}" for length in range(1, 5))


def _brief(rule: str) -> str:
    """A rule's name, short enough to stand below its bar."""
    return rule.replace("_block with ", "+").split(" ")[0]


def _h2(words: str) -> str:
    return f"<h2>{escape(words)}</h2>"


def _verdict(code: int, subject: str) -> str:
    return f'<h1>{escape(subject)}: <span class="verdict v{code}">{WORDS[code]}</span></h1>'


def _table(names: Sequence[str], rows: Sequence[Row]) -> str:
    def cell(value: object, tag: str) -> str:
        words = str(value)
        style = ' class="n"' if words[:1].isdigit() else ""
        return f"<{tag}{style}>{escape(words)}</{tag}>"

    head = "".join(cell(name, "th") for name in names)
    body = "".join(f"<tr>{''.join(cell(value, 'td') for value in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _page(title: str, parts: Sequence[str], conditions: dict[str, Any], seconds: float) -> str:
    facts = ", ".join(f"{name}: {value}" for name, value in conditions.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(parts)}"
        f'<h2>Conditions</h2><p class="faint">{escape(facts)}; {seconds:.1f} s.</p></body></html>\n'
    )
