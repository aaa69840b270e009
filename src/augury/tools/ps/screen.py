"""The output of `augury ps`: one line per server."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from augury.tools.shared.safe_text import safe_text
from augury.tools.shared.terminal import output_console

COLUMNS = ("pid", "where", "model", "drafts with", "up", "running", "waiting", "accepted")
WHOLE = ("pid", "where", "running", "waiting", "accepted")  # a narrow terminal wraps the others
UNKNOWN = "?"


def show(servers: list[dict[str, Any]]) -> None:
    """Print the list."""
    console = output_console()
    if not servers:
        console.print("No server of yours runs here; `augury serve` starts one.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, no_wrap=name in WHOLE)
    for one in servers:
        table.add_row(*(safe_text(cell) for cell in row(one)))
    console.print(table)
    if any(one["running"] is None for one in servers):
        console.print("? no answer, or it needs a different --api-key", style="dim")


def row(one: dict[str, Any]) -> tuple[str, ...]:
    """The cells of one server; acceptance is that of the last five minutes."""
    load = [UNKNOWN if one[name] is None else str(one[name]) for name in ("running", "waiting")]
    rate = one["acceptance_rate"]
    where = one.get("uds") or one.get("url") or UNKNOWN
    names = ", ".join(one.get("models") or ()) or UNKNOWN
    accepted = "-" if rate is None else f"{rate:.0%}"
    return str(one.get("pid")), str(where), names, str(one.get("method") or "-"), span(one["uptime"]), *load, accepted


def span(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = int(seconds)
    for unit, size, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {below}"
    return f"{whole} s"
