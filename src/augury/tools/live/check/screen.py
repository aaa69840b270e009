"""Shows a check in a terminal: one line per figure with its verdict in colour, and below them what to do."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from augury.tools.live.checks import Check, Judged
from augury.tools.live.marks import STYLES, by_position, safe
from augury.tools.live.remarks import remarks
from augury.tools.live.session import Session
from augury.tools.shared.terminal import print_wrapped

INDENT = 26  # columns before a check's figure
WIDE = 100  # terminal columns from which figures and what they are compared with get separate table columns
FIGURE = 31  # columns of a figure there
HEADS = {"pass": "healthy", "warn": "works, with warnings", "fail": "not healthy"}


def show(console: Console, session: Session, judged: list[Judged]) -> None:
    """Print the whole screen."""
    for one in judged:
        _headline(console, session, one)
        _checks(console, one)
        for remark in remarks(one):
            print_wrapped(console, Text(f"note: {remark}", "dim"))
        _summary(console, session, one)


def joined(parts: list[Text]) -> Text:
    """The parts of a line joined with dots."""
    text = Text()
    for number, part in enumerate(parts):
        text.append(" · " if number else "", "dim").append_text(part)
    return text


def drafter(judged: Judged) -> str:
    """The method and K, as far as known, with the current K if it differs."""
    expected, now = judged.expected, judged.window.after.k_now
    tokens = f"K={expected.k}" if expected.k else ""
    if tokens and now is not None and now != expected.k:
        tokens += f" (now {now})"
    return ", ".join(filter(None, [expected.method, tokens]))


def _headline(console: Console, session: Session, judged: Judged) -> None:
    window = judged.window
    parts = [Text(session.server.base, "bold"), Text(str(session.who)), Text(safe(window.after.model))]
    if window.after.engines > 1:
        parts.append(Text(f"{window.after.engines} engines"))
    parts.append(Text(drafter(judged)))
    print_wrapped(console, joined([part for part in parts if part.plain]))


def _checks(console: Console, judged: Judged) -> None:
    for check in judged.checks:
        _row(console, check)
        if check.name == "first position":
            _positions(console, judged)


def _row(console: Console, check: Check) -> None:
    """Print one check in columns: wrapped within its column in a terminal, on one line in a pipe."""
    state, name = Text(f"{check.state:>7} ", STYLES[check.state]), Text(f"{check.name:<18}")
    wide = console.width >= WIDE or not console.is_terminal
    fits = wide and len(check.figure) < FIGURE
    figure = Text(f"{safe(check.figure):<{FIGURE}}" if fits else safe(check.figure))
    figure.append("" if fits or not check.against else " · ", "dim").append(safe(check.against), "dim")
    if not console.is_terminal:
        console.print(state + name + figure, soft_wrap=True)
        return
    table = Table.grid()
    for width in (8, 18, None):
        table.add_column(width=width, no_wrap=width is not None)
    table.add_row(state, name, figure)
    console.print(table)


def _positions(console: Console, judged: Judged) -> None:
    drafting = judged.window.drafting
    if len(drafting.marginal) < 2:
        return
    room = (console.width if console.is_terminal else 100) - INDENT
    fair = drafting.fair if drafting.varies else None
    rows = [("by position", drafting.marginal, "of all drafts" if fair else "")]
    rows += [("", fair, "of those that reached it")] if fair else []
    for name, rates, label in rows:
        row = Text(f"{name:>{INDENT - 7}}".ljust(INDENT))
        shown = by_position(rates, room - len(label) - 1)
        console.print(row.append_text(shown).append(f" {label}" if label else "", "dim"), soft_wrap=True)


def _summary(console: Console, session: Session, judged: Judged) -> None:
    for check in judged.checks:
        if check.state in ("fail", "warn") or (check.state == "note" and check.fix):
            _labelled(console, check)
    states = [check.state for check in judged.checks]
    words = {"fail": "failed", "warn": "with a warning", "unknown": "not judged", "pass": "passed"}
    head = "not judged: name the method with --method" if judged.wants_method else "cannot be judged"
    said = [Text(HEADS.get(judged.verdict, head), STYLES[judged.verdict])]
    said += [Text(f"{states.count(state)} {word}") for state, word in words.items() if state in states]
    print_wrapped(console, joined(said))
    if judged.verdict in ("fail", "warn"):
        print_wrapped(console, Text.assemble("why: ", (f"augury diagnose {session.server.base}", "bold")))


def _labelled(console: Console, check: Check) -> None:
    text = Text.assemble((f"{check.name}: ", STYLES[check.state]), safe(check.fix))
    if check.entry:
        text.append(f" [{check.entry}]", "dim")
    print_wrapped(console, text, 2)
