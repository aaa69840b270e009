"""A replay as programs and people read it: profiles with their conditions, tables, one line of caveats each."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from augury.methods.registry import LOOK_UPS
from augury.observe.machine import cpu_name, versions_of
from augury.tools.replay.figures import Figures, Summary
from augury.tools.replay.replay import Log
from augury.tools.replay.traces import TraceReader
from augury.tools.shared.profile import make_profile
from augury.tools.shared.safe_text import shown

PACKAGES = ("augury", "numpy", "numba", "tokenizers")
SHOWN = 8  # classes, turns and positions in a table; JSON has all of them
RULE = (
    "Drafted tokens are accepted while they are the recorded ones. These methods draft deterministically, so that is "
    "exactly what the engine's rule accepts where the recorded text is what the target says."
)
MEANING = (
    "rate: accepted of drafted tokens. length: tokens from a step with a draft, its own one included. tok/step: tokens "
    "from any step. wasted: rejected drafts for each token. us: a drafting call, median and 99th percentile."
)


def conditions_of(reader: TraceReader, log: Log, tokenizer: str, max_model_len: int | None) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "files": [
            {"name": path.name, "bytes": path.stat().st_size, "format": reader.formats.get(str(path))}
            for path in reader.paths
        ],
        "conversations": log.conversations, "responses": len(log.turns), "without_response": log.without_response,
        "sent_again": log.resent,
        "torn_records": len(reader.torn), "cut_by_max_model_len": log.cut, "prompt_tokens": log.prompt_tokens,
        "response_tokens": log.response_tokens, "tenants": len(log.tenants), "tokenizer": tokenizer,
        "max_model_len": max_model_len, "limit": reader.limit, "model": "none: recorded text",
        "temperature": "as recorded", "acceptance": "drafted tokens equal to the recorded ones (coupled, greedy)",
        "batch": 1, "order": "as recorded, one response after another; each response's first token comes from prefill",
        "hardware": cpu_name(), "versions": versions_of({name: name for name in PACKAGES}),
    }  # fmt: skip


def profile_of(summary: Summary, config: dict[str, Any], conditions: dict[str, Any]) -> dict[str, Any]:
    """One configuration in the shape of speculation_profile.json, and under `replay` what that has no field for."""
    tokens = max(summary.tokens, len(summary.accepted_at))
    profile = make_profile(
        summary.method, tokens, summary.accepted_at, summary.total.drafts, summary.lengths, summary.per_request,
        {**conditions, "speculative_config": config},
    )  # fmt: skip
    profile["per_category"] = {
        label: {"mean_accept_length": round(part.acceptance_length, 6), **part.as_record()}
        for label, part in summary.by_class.items()
    }
    profile["replay"] = {
        "name": summary.name, **summary.total.as_record(),
        "accept_rates_where_drafted": [round(rate, 6) for rate in summary.where_drafted],
        "drafted_per_position": summary.drafted_at, "accepted_per_position": summary.accepted_at,
        "by_turn": {str(turn): part.as_record() for turn, part in summary.by_turn.items()},
        "first_tenth": summary.first_tenth and summary.first_tenth.as_record(),
        "last_tenth": summary.last_tenth and summary.last_tenth.as_record(),
        "course": [part.as_record() for part in summary.course],
        "draft_us": {"p50": summary.times.p50, "p99": summary.times.p99, "samples": summary.times.samples},
        "walk_us_per_emitted_token": round(summary.times.per_token, 3),
        "walk_tokens_per_second": round(summary.times.tokens_per_second),
        "index_bytes": summary.bytes, "index_bytes_per_token": round(summary.bytes_per_token, 2),
    }  # fmt: skip
    return profile


def show(console: Console, summaries: list[Summary], best: int, conditions: dict[str, Any]) -> None:
    """Print everything."""
    console.print(_overview(summaries, best))
    if any(summary.total.drafts for summary in summaries):
        console.print(_positions(summaries))
    if len({label for summary in summaries for label in summary.by_class}) > 1:
        console.print(_groups("tokens a step by class of request", [s.by_class for s in summaries], summaries))
    if max(len(summary.by_turn) for summary in summaries) > 1:
        console.print(_groups("tokens a step by turn", [s.by_turn for s in summaries], summaries))
    for summary in summaries:
        for line in _remarks(summary):
            console.print(line, soft_wrap=True)
    console.print(MEANING, style="dim")
    console.print(RULE, style="dim")
    console.print(conditions_line(conditions), style="dim")


def conditions_line(conditions: dict[str, Any]) -> str:
    """What the figures depend on, for a person."""
    files = ", ".join(shown(file["name"]) for file in conditions["files"][:4])
    more = f" and {len(conditions['files']) - 4} more" if len(conditions["files"]) > 4 else ""
    return (
        f"{files}{more}: {conditions['responses']} responses of {conditions['conversations']} conversations, "
        f"{conditions['prompt_tokens']} prompt and {conditions['response_tokens']} response tokens; tokenizer "
        f"{conditions['tokenizer']}; no model; one response after another; {conditions['hardware']}."
    )


def _overview(summaries: list[Summary], best: int) -> Table:
    table = Table(box=SIMPLE, title="replay", title_justify="left", title_style="bold", padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold")
    for name in ("rate", "length", "tok/\nstep", "steps\nsaved", "with\ndraft", "drafted\n/step", "wasted", "us"):
        table.add_column(name, justify="right", no_wrap=True)
    for i, summary in enumerate(summaries):
        total, times = summary.total, summary.times
        mark = " *" if i == best and len(summaries) > 1 else ""
        table.add_row(
            summary.name + mark, f"{total.acceptance_rate:.1%}", f"{total.acceptance_length:.2f}",
            f"{total.tokens_per_step:.2f}", f"{total.steps_saved:.1%}", f"{total.share_drafted:.0%}",
            f"{total.drafted_per_step:.2f}", f"{total.wasted_per_token:.2f}", f"{times.p50:.0f}/{times.p99:.0f}",
            style="bold" if mark else None,
        )  # fmt: skip
    if len(summaries) > 1:
        table.caption, table.caption_justify = "* fewest steps", "left"
    return table


def _positions(summaries: list[Summary]) -> Table:
    deepest = max(len(summary.accepted_at) for summary in summaries)
    count = min(deepest, SHOWN)
    title = "accepted up to each position: of all drafts (vLLM's rate); of those that got so far"
    table = Table(box=SIMPLE, title=title, title_justify="left", title_style="bold")
    table.add_column("method", overflow="fold")
    for position in range(1, count + 1):
        table.add_column(str(position), justify="right", no_wrap=True)
    for summary in summaries:
        pairs = list(zip(summary.marginal, summary.where_drafted, strict=True))[:count]
        cells = [f"{marginal:.2f}\n{given:.2f}" for marginal, given in pairs]
        table.add_row(summary.name, *cells)
    if deepest > count:
        table.caption, table.caption_justify = f"{deepest - count} more positions: --json", "left"
    return table


def _groups(title: str, parts: list[Any], summaries: list[Summary]) -> Table:
    table = Table(box=SIMPLE, title=title, title_justify="left", title_style="bold")
    table.add_column("", overflow="fold")
    table.add_column("tokens", justify="right", no_wrap=True)
    for summary in summaries:
        table.add_column(summary.name, justify="right", overflow="fold")
    names = list(parts[0])
    if title.endswith("request"):
        names.sort(key=lambda name: -parts[0][name].emitted)
    for name in names[:SHOWN]:
        found: list[Figures] = [part[name] for part in parts]
        table.add_row(shown(str(name)), str(found[0].emitted), *(f"{part.tokens_per_step:.2f}" for part in found))
    if len(names) > SHOWN:
        table.caption, table.caption_justify = f"{len(names) - SHOWN} more: --json", "left"
    return table


def _remarks(summary: Summary) -> list[str]:
    lines = []
    if LOOK_UPS[summary.method].forgets:
        if summary.first_tenth and summary.last_tenth:
            first, last = summary.first_tenth.tokens_per_step, summary.last_tenth.tokens_per_step
            lines.append(f"{summary.name}: warm-up: {first:.2f} tok/step in the first tenth, {last:.2f} in the last.")
        lines.append(
            f"{summary.name}: index {summary.bytes / 1e6:.1f} MB, {summary.bytes_per_token:.0f} bytes a token."
        )
    else:
        size = f"{summary.bytes / 1e6:.2f} MB for the longest conversation"
        lines.append(f"{summary.name}: index {size}, {summary.bytes_per_token:.0f} bytes a token.")
    return lines
