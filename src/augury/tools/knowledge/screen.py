"""`augury knowledge`: what the doctor knows, for the terminal, for programs and for the docs page."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from augury.config.errors import ConfigError
from augury.tools.knowledge.base import KINDS, Entry, knowledge, look_up, readable
from augury.tools.knowledge.method_screen import PREFIX, show_method
from augury.tools.shared.severity import STYLES
from augury.tools.shared.terminal import output_console, print_json

TITLES = {
    "pitfalls": "Pitfalls: what is written wrong, or does not do what it says",
    "gates": "Gates: what a release does not know yet, or no longer",
    "composability": "Composability: what goes together",
    "fits": "Fits: models and settings that do not go together",
    "bugs": "Bugs: what a release does wrong, and until when",
    "changes": "Changes: what a release does differently without being asked, and what to measure",
    "methods": "Methods: when to choose which",
    "targets": "Targets: what exists to draft for them",
    "bands": "Bands: what the figures mean",
    "diagnoses": "Diagnoses: what is seen, its likely causes, and how to tell them apart",
}


def list_entries(kind: str | None, as_json: bool, markdown: bool) -> None:
    """Print every entry, or those of one kind."""
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"--kind {kind!r} is unknown; there are {', '.join(KINDS)}.")
    if as_json and markdown:
        raise ConfigError("--markdown and --json are two formats; choose one.")
    chosen = [entry for entry in knowledge().values() if kind in (None, entry.kind)]
    if markdown:
        return print(page(chosen))
    if as_json:
        return print_json({"entries": [record(entry) for entry in chosen]})
    console = output_console()
    for entry in chosen:
        severity = f"{entry.severity:<8}", STYLES[entry.severity]
        line = Text.assemble(severity, (entry.id, "bold"), f"  {entry.headline}")
        console.print(line, soft_wrap=not console.is_terminal)
    console.print(Text(f"{len(chosen)} entries; `augury knowledge show ID` explains one", "dim"))
    return None


def show_entry(name: str, as_json: bool) -> None:
    """Print one entry in full, by its id or by a method's name."""
    chosen = PREFIX + name.replace("_", "-")
    entry = look_up(chosen if chosen in knowledge() else name)
    if as_json:
        return print_json(record(entry))
    console = output_console()
    if entry.kind == "methods":
        return show_method(console, entry)
    head = Text.assemble((entry.severity, STYLES[entry.severity]), " ", (entry.id, "bold"), f"  {entry.headline}")
    console.print(head, soft_wrap=not console.is_terminal)
    facts = [("why", readable(entry.why)), ("fix", readable(entry.fix)), ("vLLM", str(entry.versions))]
    facts += [("causes", "; ".join(_causes(entry)))] if entry.causes else []
    facts += [("when", words(entry.condition)), ("source", entry.source), ("kind", entry.kind)]
    for label, text in facts:
        _show_fact(console, label, text)
    return None


def _causes(entry: Entry) -> list[str]:
    """The causes of an entry, each with what would confirm it."""
    return [readable(f"{cause.cause} (confirm by: {cause.confirm})") for cause in entry.causes]


def _show_fact(console: Console, label: str, text: str) -> None:
    line = Text.assemble((f"{label + ':':<9}", "bold"), text)
    if console.is_terminal:
        console.print(Padding(line, (0, 0, 0, 2)))
    else:
        console.print(Text("  ") + line, soft_wrap=True)


def record(entry: Entry) -> dict[str, Any]:
    """An entry as a JSON-serialisable dict."""
    return entry.model_dump(mode="json", exclude_none=True) | {"linted": entry.linted}


def words(condition: Any) -> str:
    """A condition in words."""
    if "fact" in condition:
        [(word, operand)] = [(word, operand) for word, operand in condition.items() if word != "fact"]
        operand = operand["fact"] if isinstance(operand, dict) else operand
        said = "is given" if (word, operand) == ("contains", "") else f"{word.replace('_', ' ')} {_said(operand)}"
        return f"{condition['fact']} {said}"
    [(word, operand)] = condition.items()
    if word in ("all", "any"):
        return f" {'and' if word == 'all' else 'or'} ".join(_inner(part) for part in operand)
    if word == "not":
        return f"not {_inner(operand)}"
    if word == "key":
        return " and ".join(f"{name} = {value!r}" for name, value in operand.items())
    return f"{word.replace('_', ' ')} {_said(operand)}"


def _inner(condition: Any) -> str:
    several = next(iter(condition)) in ("all", "any")
    return f"({words(condition)})" if several else words(condition)


def _said(operand: Any) -> str:
    return " or ".join(map(str, operand)) if isinstance(operand, list) else str(operand)


def page(entries: list[Entry]) -> str:
    """The reference page, docs/knowledge.md."""
    lines = [
        "# What the doctor knows",
        "",
        "Generated by `augury knowledge list --markdown`; a test holds it to `tools/knowledge/*.yaml`. Words in",
        "braces are filled in from the command that is examined. Entries marked *reference* are never reported by",
        "`augury doctor`: they are for people, for `check` and for `diagnose`.",
    ]
    for kind in KINDS:
        chosen = [entry for entry in entries if entry.kind == kind]
        if not chosen:
            continue
        lines += ["", f"## {TITLES[kind]}", "", "| id | severity | vLLM | says | why | what to do | source |"]
        lines += ["|---|---|---|---|---|---|---|", *map(_row, chosen)]
    return "\n".join(lines)


def _row(entry: Entry) -> str:
    severity = entry.severity if entry.linted else f"{entry.severity}, *reference*"
    why = readable(entry.why)
    if entry.causes:
        why += " Causes: " + "; ".join(_causes(entry)) + "."
    cells = [f"`{entry.id}`", severity, str(entry.versions), entry.headline, why, readable(entry.fix), entry.source]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
