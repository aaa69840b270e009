"""Shows a replay in a terminal: a progress bar, then tables and the meaning of their figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from augury.methods.registry import LOOK_UPS
from augury.tools.replay.figures import Summary
from augury.tools.replay.replay import Log
from augury.tools.replay.traces import TraceReader
from augury.tools.shared.pulse import Count, pulse
from augury.tools.shared.safe_text import without_markup

SHOWN = 8  # maximum classes, turns and positions in a table; the JSON has all of them
RULE = (
    "Drafted tokens are accepted while they are the recorded ones. These methods draft deterministically, so that is "
    "exactly what the engine's rule accepts where the recorded text is what the target says."
)
MEANING = (
    "rate: accepted of drafted tokens. length: tokens from a step with a draft, the target's own included. tok/step: "
    "tokens from any step. wasted: rejected drafts for each token. us: a drafting call, median and 99th percentile."
)


@contextmanager
def progress(reader: TraceReader) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr by bytes read, or lines in a pipe; call the yielded function with the tokens done."""
    said, speed = TextColumn("{task.description}"), TextColumn("{task.fields[done]}")
    columns = said, BarColumn(), speed, TimeElapsedColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    watched, count = console.is_terminal, Count("reading, in bytes", max(reader.total_bytes, 1))
    with (
        Progress(*columns, console=console, disable=not watched, transient=True) as bar,
        pulse(count.line, quiet=watched),
    ):
        task = bar.add_task("reading", total=max(reader.total_bytes, 1), done="")

        def tick(tokens: int) -> None:
            spent = bar.tasks[0].elapsed or 1e-9
            bar.update(task, completed=reader.bytes_read, done=f"{tokens:,} tokens, {tokens / spent:,.0f}/s")
            count.done = reader.bytes_read

        yield tick


def warn(reader: TraceReader) -> None:
    """Report on stderr what was skipped."""
    for place in reader.torn[:5]:
        print(f"skipped a truncated record: {place}", file=sys.stderr)
    if len(reader.torn) > 5:
        print(f"skipped {len(reader.torn)} truncated records in all", file=sys.stderr)


def show(console: Console, summaries: list[Summary], best: int, conditions: dict[str, Any], log: Log) -> None:
    """Print the tables, the remarks and the conditions."""
    console.print(_overview(summaries, best))
    if any(summary.total.drafts for summary in summaries):
        console.print(_positions(summaries))
    if len({label for summary in summaries for label in summary.by_class}) > 1:
        largest = sorted(summaries[0].by_class, key=lambda label: -summaries[0].by_class[label].emitted)
        parts = [summary.by_class for summary in summaries]
        console.print(_groups("tokens a step by class of request", largest, parts, summaries))
    if max(len(summary.by_turn) for summary in summaries) > 1:
        turns = [summary.by_turn for summary in summaries]
        console.print(_groups("tokens a step by turn", list(turns[0]), turns, summaries))
    for line in (line for summary in summaries for line in _remarks(summary)):
        console.print(line, soft_wrap=True)
    for text in (MEANING, RULE, conditions_line(conditions)):
        console.print(text, style="dim")
    if log.without_response:
        print(f"{log.without_response} records hold a prompt and no response, so there is nothing to replay in them.")
    if log.resent:
        print(f"{log.resent} responses were resent as part of a later prompt; they count where they were first given.")


def conditions_line(conditions: dict[str, Any]) -> str:
    """The conditions of the figures in one line."""
    files = ", ".join(without_markup(file["name"]) for file in conditions["files"][:4])
    more = f" and {len(conditions['files']) - 4} more" if len(conditions["files"]) > 4 else ""
    return (
        f"{files}{more}: {conditions['responses']} responses of {conditions['conversations']} conversations, "
        f"{conditions['prompt_tokens']} prompt and {conditions['response_tokens']} response tokens; tokenizer "
        f"{conditions['tokenizer']}; no model; one response after another; {conditions['hardware']}."
    )


def _table(title: str, first: str, *columns: str, caption: str = "") -> Table:
    table = Table(box=SIMPLE, title=title, title_justify="left", title_style="bold", padding=(0, 1, 0, 0))
    table.caption, table.caption_justify = caption or None, "left"
    table.add_column(first, overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _overview(summaries: list[Summary], best: int) -> Table:
    names = ("rate", "length", "tok/\nstep", "steps\nsaved", "with\ndraft", "drafted\n/step", "wasted", "us")
    several = len(summaries) > 1
    table = _table("replay", "method", *names, caption="* fewest steps" if several else "")
    for i, summary in enumerate(summaries):
        total, times, mark = summary.total, summary.times, " *" if i == best and several else ""
        cells = [f"{total.acceptance_rate:.1%}", f"{total.acceptance_length:.2f}", f"{total.tokens_per_step:.2f}"]
        cells += [f"{total.steps_saved:.1%}", f"{total.share_drafted:.0%}", f"{total.drafted_per_step:.2f}"]
        cells += [f"{total.wasted_per_token:.2f}", f"{times.p50:.0f}/{times.p99:.0f}"]
        table.add_row(summary.name + mark, *cells, style="bold" if mark else None)
    return table


def _positions(summaries: list[Summary]) -> Table:
    deepest = max(len(summary.accepted_at) for summary in summaries)
    count = min(deepest, SHOWN)
    title = "accepted up to each position: of all drafts (vLLM's rate); of those that got so far"
    more = f"{deepest - count} more positions: --json" if deepest > count else ""
    table = _table(title, "method", *map(str, range(1, count + 1)), caption=more)
    for summary in summaries:
        pairs = list(zip(summary.marginal, summary.where_drafted, strict=True))[:count]
        table.add_row(summary.name, *(f"{marginal:.2f}\n{given:.2f}" for marginal, given in pairs))
    return table


def _groups(title: str, names: list[Any], parts: list[Any], summaries: list[Summary]) -> Table:
    table = _table(title, "", "tokens", caption=f"{len(names) - SHOWN} more: --json" if len(names) > SHOWN else "")
    for summary in summaries:
        table.add_column(summary.name, justify="right", overflow="fold")
    for name in names[:SHOWN]:
        found = [part[name] for part in parts]
        table.add_row(
            without_markup(str(name)), str(found[0].emitted), *(f"{part.tokens_per_step:.2f}" for part in found)
        )
    return table


def _remarks(summary: Summary) -> Iterator[str]:
    remembers, size = bool(LOOK_UPS[summary.method].forgets), summary.bytes / 1e6
    if remembers and summary.first_tenth and summary.last_tenth:
        first, last = summary.first_tenth.tokens_per_step, summary.last_tenth.tokens_per_step
        yield f"{summary.name}: warm-up: {first:.2f} tok/step in the first tenth, {last:.2f} in the last."
    held = f"{size:.1f} MB" if remembers else f"{size:.2f} MB for the longest conversation"
    yield f"{summary.name}: index {held}, {summary.bytes_per_token:.0f} bytes per token."
