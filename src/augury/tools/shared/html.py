"""A report as one self-contained HTML file: no script, no font, no network; light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from augury.tools.shared.templates import render

Row = Sequence[object]


def h2(words: str) -> str:
    """A heading."""
    return f"<h2>{escape(words)}</h2>"


def table(names: Sequence[str], rows: Sequence[Row]) -> str:
    """A table; cells that begin with a digit are right-aligned."""

    def cell(value: object, tag: str) -> str:
        words = str(value)
        style = ' class="n"' if words[:1].isdigit() else ""
        return f"<{tag}{style}>{escape(words)}</{tag}>"

    head = "".join(cell(name, "th") for name in names)
    body = "".join(f"<tr>{''.join(cell(value, 'td') for value in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def page(title: str, parts: Sequence[str], conditions: Mapping[str, Any], seconds: float) -> str:
    """The whole file, with the conditions of its figures at the end."""
    facts = ", ".join(f"{name}: {value}" for name, value in conditions.items())
    return render("shared/page.html", title=title, parts="".join(parts), facts=facts, seconds=seconds)
