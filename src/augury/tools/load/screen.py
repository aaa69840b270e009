"""Shows a sweep and a comparison in a terminal."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from augury.tools.load.compare import Comparison, Ratio, verdict
from augury.tools.shared.terminal import UNSAFE

HONEST = (
    "TPOT is a request's time after its first token over its other tokens. ITL (in the JSON) is between chunks: with "
    "speculation a chunk holds several tokens, so ITL says nothing about speed."
)
DRIFT = (
    "Intervals are 95 %, over requests and stretches of each run. The runs were at different times: what else changed "
    "in between is not in them (--baseline-url lets two servers take turns)."
)
NARROW = 110  # columns below which a table omits some figures, which the JSON still has


def show(console: Console, conditions: dict[str, Any], results: dict[str, list[dict[str, Any]]]) -> None:
    """Print a table for each server, the errors, and how to interpret the figures."""
    _say(console, conditions_line(conditions))
    for name, levels in results.items():
        measured = [level for level in levels if level["completed"]]
        if measured:
            console.print(_table(name, measured, console.width < NARROW))
        for level in levels:
            if not level["completed"]:
                said = f"{name}, {_streams(level['max_concurrency'])}: no request succeeded"
                console.print(said, style="bold red", markup=False)
            _errors(console, level)
        if any(level["tokens_counted_by"] == "chunks" for level in measured):
            _say(
                console,
                f"{name} does not say how many tokens it sent (usage): chunks are counted, and with "
                "speculation those are fewer.",
            )
    if any(level["completed"] for levels in results.values() for level in levels):
        _say(console, HONEST)


def conditions_line(conditions: dict[str, Any]) -> str:
    """The conditions of the measurement in one line."""
    parts = [
        conditions["model"],
        f"{conditions['dataset']} ({conditions['prompts']} prompts)",
        f"max_tokens {conditions['max_tokens']}",
        f"temperature {conditions['temperature']:g}",
        conditions["endpoint"],
    ]
    if conditions["request_rate"] != "inf":
        parts.append(f"{conditions['request_rate']:g} requests per second, burstiness {conditions['burstiness']:g}")
    reused = "prompts are reused, so prefix caches are warm"
    parts.append(reused if conditions["prompts_reused"] else "each request has a first line of its own")
    if conditions["ignore_eos"]:
        parts.append("ignore_eos")
    if conditions["extra_body"]:
        parts += [f"{name}: {json.dumps(fields)}" for name, fields in conditions["extra_body"].items()]
    if conditions["interrupted"]:
        parts.append("interrupted")
    return " · ".join(str(part) for part in parts)


def _table(name: str, levels: list[dict[str, Any]], narrow: bool) -> Table:
    speculates = any("spec_decode_acceptance_length" in level for level in levels)
    table = Table(
        title=name,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
        padding=(0, 1 if narrow else 2, 0, 0),
    )
    names = ["\nstreams", "\nok", "tok/s\nall", "tok/s\nper user", "TTFT ms\np50", "\np99", "TPOT ms\np50", "\np99"]
    names += [] if narrow else ["E2E ms\np50", "requests\nper second", "\nfailed"]
    names += ["drafts\naccepted", "tokens\nper step"] if speculates else []
    for column in names:
        table.add_column(column, justify="right", no_wrap=True)
    for level in levels:
        cells = [
            str(level["max_concurrency"]),
            str(level["completed"]),
            f"{level['output_throughput']:.1f}",
            f"{level['output_throughput_per_user']:.1f}",
            f"{level['median_ttft_ms']:.0f}",
            f"{level['p99_ttft_ms']:.0f}",
            _figure(level["median_tpot_ms"]),
            _figure(level["p99_tpot_ms"]),
        ]
        if not narrow:
            cells += [f"{level['median_e2el_ms']:.0f}", f"{level['request_throughput']:.2f}", str(level["failed"])]
        if speculates:
            rate, length = (level.get(f"spec_decode_acceptance_{what}") for what in ("rate", "length"))
            cells += [f"{rate:.0f} %" if rate is not None else "", f"{length:.2f}" if length is not None else ""]
        table.add_row(*cells)
    return table


def _figure(value: float | None) -> str:
    """A figure as text; empty if no answer has a second token."""
    return f"{value:.1f}" if value is not None else ""


def _errors(console: Console, level: dict[str, Any]) -> None:
    for kind, count in level["errors_by_kind"].items():
        message = level["first_errors"][kind].translate(UNSAFE)
        console.print(
            f"{_streams(level['max_concurrency'])}: {count} of {level['completed'] + level['failed']} failed, {kind}: "
            f"{message}",
            style="red",
            soft_wrap=not console.is_terminal,
            markup=False,
        )


def _streams(number: int) -> str:
    return f"{number} stream{'s' if number > 1 else ''}"


def show_comparison(
    console: Console, found: list[Comparison], new: str, old: str, differences: list[str] | None
) -> None:
    """Print ratios with intervals and the verdict; `differences` is None if both were measured in one run."""
    table = Table(
        title=f"{new} against {old} (above 1: {new} is better)",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    for column in ("streams", "tok/s per user", "TPOT p50", "TTFT p50", "tok/s, all"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in found:
        table.add_row(str(one.concurrency), said(one.speed), said(one.tpot), said(one.ttft), f"{one.throughput:.2f}x")
    if found:
        console.print(table)
    if differences is not None:
        _say(console, DRIFT)
    if differences:
        console.print(f"not the same in both: {'; '.join(differences)}", style="yellow", markup=False)
    console.print(f"tok/s per user: {verdict(found)}", style="bold", soft_wrap=not console.is_terminal, markup=False)


def said(ratio: Ratio) -> str:
    """A ratio as text, with its interval if there is one."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}x"
    return f"{ratio.value:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"


def _say(console: Console, text: str) -> None:
    console.print(text, style="dim", markup=False)
