"""Advice as people read it: a ranked table in eighty columns, the configuration to paste, and what it rests on."""

from __future__ import annotations

import json

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from augury.config.versions import version
from augury.tools.advise.advice import Advice
from augury.tools.advise.planners import for_planners, words
from augury.tools.advise.predict import At
from augury.tools.advise.verdicts import NOT, TRY, UNKNOWN, USE, JudgedMethod
from augury.tools.shared.safe_text import without_markup

STYLES = {USE: "green", TRY: "yellow", NOT: "red"}
SHORT_OPTION_SINCE = "0.19"  # -sc
BESIDE, CELL = 27, 9  # columns of method, verdict and memory, and of a load at its widest


def show(console: Console, advice: Advice) -> None:
    """Print the advice."""
    name = f"[bold]{without_markup(advice.question.facts.name)}[/bold]"
    if advice.cannot is not None:
        console.print(f"{name}: [bold red]{without_markup(advice.cannot)}[/bold red]", soft_wrap=True)
        return
    figures = any(line.by_load or line.too_many for line in advice.lines)
    console.print(f"{name}: times as fast as plain decoding, by requests at once" if figures else name)
    if figures:
        for table in tables_of(advice, console.width):
            console.print(table)
    if not advice.against:
        for line in advice.lines:
            console.print(_explained(line), soft_wrap=True)
    _conclude(console, advice)
    for title, listed in (("Assumed", advice.assumed), ("To be surer", advice.surer)):
        console.print(f"\n[bold]{title}[/bold]")
        for one in listed:
            console.print(f"  - {without_markup(one)}", soft_wrap=True, style="dim")


def _conclude(console: Console, advice: Advice) -> None:
    """Print the configuration to paste, or why there is none."""
    asked, best = advice.question, advice.recommended
    if best is not None and best.config is not None:
        engine = " (for Augury's engine)" if asked.ours else ""
        console.print(f"\n[bold]{'Use' if best.verdict == USE else 'Try'}[/bold]{engine}:")
        option = "-sc" if asked.ours or asked.release >= version(SHORT_OPTION_SINCE) else "--speculative-config"
        console.print(f"  {option} '{json.dumps(best.config)}'", soft_wrap=True, markup=False)
        console.print(_whole(best, asked.traffic.prompt_tokens), soft_wrap=True)
        for line in words(for_planners(best) or {}):
            console.print(f"  {line}", soft_wrap=True, style="dim", markup=False)
        return
    open_questions = not advice.against and any(line.verdict == UNKNOWN for line in advice.lines)
    console.print(f"\n[bold red]{'Nothing to advise yet' if open_questions else 'Do not speculate'}[/bold red]:")
    for why in advice.against or tuple(f"{line.candidate.method}: {line.reason}" for line in advice.lines):
        console.print(f"  - {without_markup(why)}", soft_wrap=True)


def tables_of(advice: Advice, width: int) -> list[Table]:
    """The table split by loads: each part has as many as the screen is wide enough for."""
    loads = advice.question.loads
    beside = max(1, (width - BESIDE) // CELL)
    return [table_of(advice, loads[i : i + beside]) for i in range(0, len(loads), beside)]


def table_of(advice: Advice, loads: tuple[int, ...]) -> Table:
    """One row per method and one column per load; the interval is below the figure."""
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    table.add_column("verdict", no_wrap=True, min_width=7)
    for load in loads:
        table.add_column(f"{load}", justify="right", no_wrap=True)
    table.add_column("GB", justify="right", no_wrap=True)
    for line in advice.lines:
        if line.by_load or line.too_many:
            known = {at.requests: _cell(at) for at in line.by_load}
            cells = [known.get(load, Text("does\nnot fit", "dim")) for load in loads]
            memory = f"{line.memory_bytes / 1e9:.1f}" if line.memory_bytes else "0"
            mark = "" if line.candidate.yours else "*"
            verdict = Text(line.verdict, STYLES.get(line.verdict, ""))
            table.add_row(line.candidate.method + mark, verdict, *cells, memory)
    return table


def _cell(at: At) -> Text:
    """Green where even the low end pays, red where even the high end does not."""
    style = "green" if at.decode.low >= 1.0 < at.decode.value else "red" if at.decode.high <= 1.0 and at.tokens else ""
    if not at.tokens:
        return Text("1.00\nplain", "dim")
    return Text(f"{at.decode.value:.2f} K{at.tokens}\n{at.decode.low:.1f}-{at.decode.high:.1f}", style)


def _explained(line: JudgedMethod) -> Text:
    text = Text()
    text.append(f"{line.candidate.method}: ", "bold")
    text.append(line.reason, STYLES.get(line.verdict, ""))
    if line.candidate.source:
        text.append(f". Acceptance: {line.candidate.source}", "dim")
    for note in line.candidate.notes:
        text.append(f". {note}", "dim")
    return text


def _whole(line: JudgedMethod, prompt: float) -> str:
    parts = [f"{at.whole.value:.2f} ({at.whole.low:.2f}-{at.whole.high:.2f}) at {at.requests}" for at in line.by_load]
    return f"  with prompts of {prompt:.0f} tokens read as well: " + ", ".join(parts)
