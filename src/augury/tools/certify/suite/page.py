"""The table as one HTML file: every cell links to what was asked and what was answered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from augury.tools.certify.page import WORDS
from augury.tools.certify.suite.cells import GREEN, GREY, MEANING, RED, Cell, exit_code
from augury.tools.certify.suite.table import HEADS, MARKS, columns, heads, rows
from augury.tools.shared.html import h2, page

CLASSES = {GREEN: "v0", RED: "v1", GREY: "faint"}


def suite_page(cells: Sequence[Cell]) -> str:
    """The table, the legend, and each cell by itself."""
    code = exit_code(cells)
    number = {id(cell): f"c{i}" for i, cell in enumerate(cells)}
    heading = f'<h1>Speculation, certified: <span class="verdict v{code}">{WORDS[code]}</span></h1>'
    parts = [heading, _table(cells, number), _legend()]
    for subject, found in rows(cells).items():
        conditions = next(iter(found.values())).conditions
        asked = ", ".join(f"{name} {value}" for name, value in conditions.items() if value is not None)
        parts += [h2(" · ".join(heads(subject))), f'<p class="faint">{escape(asked)}</p>']
        parts += [_details(cell, number[id(cell)]) for cell in found.values()]
    seconds = sum(float(cell.figures.get("seconds", 0)) for cell in cells)
    counted = {one: sum(cell.verdict == one for cell in cells) for one in (GREEN, RED, GREY)}
    return page("Speculation, certified", parts, {"cells": len(cells), **counted}, seconds)


def _table(cells: Sequence[Cell], number: dict[int, str]) -> str:
    names = columns(cells)
    head = "".join(f"<th>{escape(name)}</th>" for name in (*HEADS, *names))
    body = ""
    for subject, found in rows(cells).items():
        body += "<tr>" + "".join(f"<td>{escape(words)}</td>" for words in heads(subject))
        body += "".join(_mark(found.get(name), number) for name in names) + "</tr>"
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _mark(cell: Cell | None, number: dict[int, str]) -> str:
    if cell is None:
        return "<td></td>"
    says = escape(cell.reason, quote=True)
    link = f'<a class="{CLASSES[cell.verdict]}" href="#{number[id(cell)]}" title="{says}">{MARKS[cell.verdict]}</a>'
    return f'<td class="verdict">{link}</td>'


def _legend() -> str:
    words = "; ".join(f'<span class="{CLASSES[one]}">{MARKS[one]}</span>: {escape(MEANING[one])}' for one in MARKS)
    return f'<p class="faint">{words}.</p>'


def _details(cell: Cell, anchor: str) -> str:
    mark = f'<span class="verdict {CLASSES[cell.verdict]}">{MARKS[cell.verdict]}</span>'
    said = f"<b>{escape(cell.suite)}</b>: {mark} {escape(cell.reason)}"
    if cell.verdict == RED:
        said += f'; <span class="note">{escape(cell.covered)}</span>'
    small = ", ".join([*(f"{name} {value}" for name, value in cell.figures.items()), cell.when])
    evidence = ""
    if cell.evidence:
        shown = escape(json.dumps(cell.evidence, indent=1, ensure_ascii=False))
        evidence = f'<details><summary>what came</summary><pre style="white-space: pre-wrap">{shown}</pre></details>'
    return f'<p id="{anchor}">{said}<br><span class="faint">{escape(small)}</span></p>{evidence}'
