"""The table on a terminal, and below it the reason of every cell that is not green."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from augury.tools.certify.screen import verdict_line
from augury.tools.certify.suite.cells import GREEN, GREY, RED, Cell, exit_code
from augury.tools.certify.suite.table import MARKS, columns, explained, heads, rows
from augury.tools.shared.safe_text import safe_text

STYLES = {GREEN: "green", RED: "bold red", GREY: "dim"}


def show(console: Console, cells: Sequence[Cell]) -> None:
    """Print the table and the reasons; servers are numbered, since their names do not fit above the columns."""
    found = rows(cells)
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("suite")
    for number, subject in enumerate(found, 1):
        console.print(Text(safe_text(f"{number}  {' · '.join(heads(subject))}")), soft_wrap=True)
        table.add_column(str(number))
    for name in columns(cells):
        table.add_row(Text(safe_text(name)), *(_mark(by_suite.get(name)) for by_suite in found.values()))
    console.print(table)
    for cell in explained(cells):
        place = f"{' · '.join(heads(cell.subject))} · {cell.suite}: "
        said = f"{cell.reason}; {cell.covered}" if cell.verdict == RED else cell.reason
        console.print(Text(safe_text(place), STYLES[cell.verdict]) + Text(safe_text(said)), soft_wrap=True)
    counts = ", ".join(f"{sum(cell.verdict == one for cell in cells)} {one}" for one in (GREEN, RED, GREY))
    console.print(verdict_line(exit_code(cells)) + Text(f" · {counts}"))


def _mark(cell: Cell | None) -> Text:
    return Text("") if cell is None else Text(MARKS[cell.verdict], STYLES[cell.verdict])
