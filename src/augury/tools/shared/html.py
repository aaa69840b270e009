"""A report as one HTML file that needs nothing else: no script, no font, no network; light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

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
.reach { stroke: var(--a); stroke-width: 2; stroke-opacity: .6; } .lead { fill: var(--good); }
.dot { fill: var(--a); fill-opacity: .55; } .loud { fill: var(--bad); }
.bar.a { fill: var(--a); } .bar.b { fill: var(--b); }
"""
Row = Sequence[object]


def h2(words: str) -> str:
    """A heading."""
    return f"<h2>{escape(words)}</h2>"


def table(names: Sequence[str], rows: Sequence[Row]) -> str:
    """A table; what begins with a digit stands at the right."""

    def cell(value: object, tag: str) -> str:
        words = str(value)
        style = ' class="n"' if words[:1].isdigit() else ""
        return f"<{tag}{style}>{escape(words)}</{tag}>"

    head = "".join(cell(name, "th") for name in names)
    body = "".join(f"<tr>{''.join(cell(value, 'td') for value in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def page(title: str, parts: Sequence[str], conditions: Mapping[str, Any], seconds: float) -> str:
    """The whole file, with what its figures depend on at the end."""
    facts = ", ".join(f"{name}: {value}" for name, value in conditions.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(parts)}"
        f'<h2>Conditions</h2><p class="faint">{escape(facts)}; {seconds:.1f} s.</p></body></html>\n'
    )
