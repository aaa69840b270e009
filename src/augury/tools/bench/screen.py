"""The output of a bench: conditions, tables, JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from augury.observe.machine import versions_of
from augury.tools.bench.contenders import label_of
from augury.tools.bench.figures import AnswerMatch, ContenderFigures, Spread

PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "llama.cpp": "llama-cpp-python",
    "ik_llama.cpp": "ik-llama-cpp-python",
    "numba": "numba",
}

QUIET = 0.03  # share of the machine that others may take before the report says so


def versions() -> dict[str, str]:
    """Versions of the installed libraries that matter."""
    return versions_of(PACKAGES)


def _ranks(conditions: dict[str, Any]) -> str:
    """How many ranks share Augury's threads; empty if there is only one."""
    size = conditions.get("tensor_parallel_size", 1)
    return f" (Augury's in {size} ranks)" if size > 1 else ""


def conditions_line(conditions: dict[str, Any]) -> str:
    """Everything the figures depend on, in a few lines of text."""
    specs = [conditions["speculative_config"], *conditions.get("more_speculative_configs", ())]
    spec, libraries = specs[0], conditions["versions"]
    sets = ", ".join(f"{count} {name}" for name, count in conditions["prompts"].items())
    shortest, longest = spec.get("prompt_lookup_min"), spec.get("prompt_lookup_max")
    lookup = f", n-grams of {shortest} to {longest} (the peers' look-ups go down to 1)" if longest else ""
    quantized = f"; llama.cpp runs {conditions['gguf']}" if conditions["gguf"] else ""
    return (
        f"{conditions['cpu']}, {conditions['threads']} threads{_ranks(conditions)}; "
        f"model {conditions['model']} in {conditions['dtype']}{quantized}; "
        f"prompts: {sets}; {conditions['max_tokens']} new tokens each, greedy (temperature 0), end of text ignored; "
        + "; ".join(f"{label_of(one)}, K={one['num_speculative_tokens']}" for one in specs)
        + f"{lookup}; "
        + f"{conditions['rounds']} rounds; "
        + ", ".join(f"{name} {number}" for name, number in libraries.items())
    )


def table_of(lines: list[ContenderFigures]) -> Table:
    """The table of one prompt set at one batch size; it fits eighty columns."""
    first = lines[0]
    table = Table(title=f"{first.prompts}: {_how(first.batch)}", title_justify="left", title_style="bold", box=SIMPLE)
    table.add_column("contender", no_wrap=True)
    for name in ("tok/s", "min-max", "x trans-\nformers", "x own\nplain", "accep-\ntance", "accept.\nlength"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*_cells(line), style="bold" if line.contender.startswith("augury") else None)
    return table


def _how(batch: int) -> str:
    if batch == 1:
        return "one prompt at a time"
    return f"{batch} prompts; Augury runs them at once, the others one after another, -batch as one padded batch"


def _cells(line: ContenderFigures) -> list[str]:
    def times(value: Spread | None) -> str:
        return f"{value.median:.2f}" if value else ""

    rate, length = line.acceptance_rate, line.acceptance_length
    return [
        line.contender,
        f"{line.speed.median:.1f}",
        f"{line.speed.low:.1f}-{line.speed.high:.1f}",
        times(line.to_baseline),
        times(line.to_plain),
        "" if rate is None else f"{rate:.0%}",
        "" if length is None else f"{length:.2f}",
    ]


def agreement_lines(agreements: list[AnswerMatch]) -> list[tuple[str, bool]]:
    """Which contenders give the same tokens: a line per pair, and one per prompt set and batch where answers differ."""
    lines = []
    for contender, other in dict.fromkeys((found.contender, found.other) for found in agreements):
        pair = [found for found in agreements if (found.contender, found.other) == (contender, other)]
        equal, total = sum(found.equal for found in pair), sum(found.total for found in pair)
        lines.append((f"{contender} gives the tokens of {other} in {equal} of {total} answers", equal == total))
        for found in pair:
            if not found.whole:
                where = f"{found.equal} of {found.total}, the first difference is at token {found.first_difference}"
                lines.append((f"  {found.prompts}, batch {found.batch}: {where}", False))
    return lines


def show(
    console: Console, report: dict[str, Any], lines: list[ContenderFigures], agreements: list[AnswerMatch]
) -> None:
    """Print tables, agreement, what was left out, and the conditions."""
    for panel in dict.fromkeys((line.prompts, line.batch) for line in lines):
        console.print(table_of([line for line in lines if (line.prompts, line.batch) == panel]))
    for line, whole in agreement_lines(agreements):
        console.print(line, style="" if whole else "yellow", soft_wrap=True)
    for name, reason in {**report["left_out"], **report["broken"]}.items():
        console.print(f"left out: {name}: {reason}", style="yellow", soft_wrap=True)
    disturbed = report["conditions"]["disturbance"]
    if disturbed > QUIET:
        console.print(f"the machine was not quiet: other processes used {disturbed:.0%} of it", style="yellow")
    console.print(
        "tok/s: new tokens over the whole time, reading the prompts included; median of the rounds. Ratios are medians "
        "of the ratio in each round. Acceptance: accepted of drafted tokens; length: tokens from a drafted pass.",
        style="dim",
    )
    console.print(conditions_line(report["conditions"]), style="dim")


def as_report(
    conditions: dict[str, Any],
    lines: list[ContenderFigures],
    agreements: list[AnswerMatch],
    left_out: dict[str, str],
    broken: dict[str, str],
) -> dict[str, Any]:
    """The whole report, for --json."""
    return {
        "conditions": conditions,
        "results": [asdict(line) for line in lines],
        "agreement": [asdict(found) for found in agreements],
        "left_out": left_out,
        "broken": broken,
    }
