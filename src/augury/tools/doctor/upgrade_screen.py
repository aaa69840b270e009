"""Shows an upgrade in a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from augury.tools.doctor.findings import Finding
from augury.tools.doctor.upgrade import Upgrade
from augury.tools.shared.safe_text import safe_text
from augury.tools.shared.severity import STYLES
from augury.tools.shared.terminal import output_console

LABELS = {"keys": "bold red", "default": "bold yellow", "opens": "bold red", "closes": "bold green"}


def show_upgrades(found: Sequence[Upgrade], old: str, new: str, console: Console | None = None) -> None:
    """Print each command for which something changes, then one summary line."""
    console = console or output_console()
    for one in found:
        if not one.quiet:
            _show(console, one, old, new)
    changed = sum(not one.quiet for one in found)
    errors = sum(finding.severity == "error" for one in found for finding in (*one.keys, *one.opened))
    refused = f", {errors} refused or broken by it" if errors else ""
    line = f"vLLM {old} to {new}: something changes for {changed} of {_many(len(found))}{refused}"
    console.print(Text(line, "bold"), soft_wrap=not console.is_terminal)


def _show(console: Console, one: Upgrade, old: str, new: str) -> None:
    where = f"{safe_text(one.name) or 'command'}:{one.line}: "
    head = Text.assemble(
        (where, "bold"), safe_text(f"{one.program} {one.target}".strip()), (f"  {old} to {new}", "dim")
    )
    console.print(head, soft_wrap=not console.is_terminal)
    told = ""
    for label, text in _rows(one):
        _row(console, label if label != told else "", text, LABELS.get(label, "bold"))
        told = label
    console.print()


def _rows(one: Upgrade) -> Iterator[tuple[str, Text]]:
    for finding in one.keys:
        yield "keys", _said(finding, finding.fix)
    if one.new_keys:
        yield "new keys", Text(", ".join(one.new_keys))
    for entry in one.changes:
        yield (
            "default",
            Text.assemble((f"{entry.versions.since}: ", "bold"), f"{entry.message}. {_sentence(entry.why)}"),
        )
    for finding in one.opened:
        yield "opens", _said(finding, finding.fix)
    for finding in one.closed:
        yield "closes", _said(finding, "")
    if one.stays:
        yield "stays", Text(", ".join(dict.fromkeys(finding.id for finding in one.stays)))
    for text in one.measure:
        yield "measure", Text(_sentence(text))


def _said(finding: Finding, fix: str) -> Text:
    what = safe_text(finding.message.replace("\n", " "))
    return Text.assemble(
        (f"{finding.severity}[{finding.id}]", STYLES[finding.severity]),
        f": {what}",
        f". {_sentence(fix)}" if fix else "",
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _row(console: Console, label: str, text: Text, style: str) -> None:
    if not console.is_terminal:
        console.print(Text.assemble("  ", (f"{label:<9}", style), text), soft_wrap=True)
        return
    table = Table.grid()
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row(Text(f"  {label:<9}", style), text)
    console.print(table)


def _many(number: int) -> str:
    return f"{number} command{'' if number == 1 else 's'}"


def as_upgrade_record(found: Sequence[Upgrade], old: str, new: str, code: int) -> dict[str, Any]:
    """The upgrade as JSON."""
    return {"from": old, "to": new, "commands": [_record(one) for one in found], "exit_code": code}


def _record(one: Upgrade) -> dict[str, Any]:
    changes = [
        {
            "id": entry.id,
            "since": entry.versions.since,
            "message": entry.message,
            "why": entry.why,
            "source": entry.source,
        }
        for entry in one.changes
    ]
    lists = {name: [_finding(f) for f in getattr(one, name)] for name in ("keys", "opened", "closed", "stays")}
    head = {"name": one.name, "line": one.line, "program": one.program, "target": one.target}
    return {**head, **lists, "new_keys": one.new_keys, "changes": changes, "measure": one.measure}


def _finding(finding: Finding) -> dict[str, str]:
    return {name: getattr(finding, name) for name in ("id", "severity", "message", "why", "fix", "source")}
