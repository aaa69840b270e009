"""The output of `augury bench --methods`: tables and JSON."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from augury.observe.machine import cpu_name, how_threads_wait
from augury.tools.bench.figures import Spread, agreement, disturbance, ratio
from augury.tools.bench.methods_lines import PLAIN, MethodLine
from augury.tools.bench.methods_run import DRAFTER, REST, TARGET, MethodRan, MethodRecord
from augury.tools.bench.rounds import Key
from augury.tools.bench.screen import QUIET, versions

if TYPE_CHECKING:
    from augury.tools.bench.plan import BenchPlan
    from augury.train.gates import GateHead

SHOWN = 10  # positions of a draft in the table; all are in the JSON

LEGEND = (
    "tok/s: new tokens over the whole time, prompts included; x plain: median of the ratio in each round. rate: "
    "accepted of drafted tokens; length: tokens from a drafted step, its own included; by place: accepted of the "
    "drafts that reached it. ms: mean of decode steps, the target's pass and the drafter apart, rest is all else."
)


def conditions_of(plan: BenchPlan, counts: dict[str, int], record: MethodRecord) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cpu": cpu_name(),
        "threads": plan.threads,
        "versions": versions(),
        "model": plan.model,
        "dtype": plan.dtype,
        "prompts": counts,
        "batches": plan.batches,
        "max_tokens": plan.max_tokens,
        "temperature": 0.0,
        "rounds": plan.rounds,
        "openmp_wait_policy": how_threads_wait(),
        "disturbance": disturbance(record, os.cpu_count() or 1),
    }


def conditions_line(conditions: dict[str, Any]) -> str:
    """The conditions as text."""
    sets = ", ".join(f"{count} {name}" for name, count in conditions["prompts"].items())
    libraries = ", ".join(f"{name} {number}" for name, number in conditions["versions"].items())
    return (
        f"{conditions['cpu']}, {conditions['threads']} threads; model {conditions['model']} in {conditions['dtype']}; "
        f"prompts: {sets}; {conditions['max_tokens']} new tokens each, greedy, end of text ignored; "
        f"{_rounds(conditions['rounds'])}, engines in turn; {libraries}"
    )


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def report_of(
    conditions: dict[str, Any],
    lines: list[MethodLine],
    record: MethodRecord,
    gates: dict[str, GateHead],
    left_out: dict[str, str],
) -> dict[str, Any]:
    """The whole report, for --json; tables and plots are made from it."""
    panels = dict.fromkeys((key.prompts, key.batch) for key in record.totals)
    results = [
        figures(record, line, Key(*panel, line.name))
        for panel in panels
        for line in lines
        if Key(*panel, line.name) in record.totals
    ]
    told = {kind: {n: v for n, v in asdict(gate).items() if n != "directory"} for kind, gate in gates.items()}
    return {
        "conditions": conditions,
        "results": results,
        "gates": told,
        "gates_are": gate_note(told),
        "left_out": left_out,
        "broken": record.broken,
    }


def gate_note(gates: dict[str, dict[str, Any]]) -> str | None:
    """A note for wherever figures of gate heads are shown: what they are and are not; None without gate heads."""
    if not gates:
        return None
    times = ", ".join(f"{kind} {gate['seconds']:.0f}" for kind, gate in gates.items())
    return (
        f"gate heads: trained on these very prompts for so many seconds: {times}; a check of the code path, not of a "
        "method's quality"
    )


def figures(record: MethodRecord, line: MethodLine, key: Key) -> dict[str, Any]:
    """The figures of one line on one prompt set at one batch size."""
    totals, ran, plain = record.totals[key], record.sums[key], key._replace(contender=PLAIN)
    times = ratio(totals, record.totals.get(plain))
    theirs = record.answers.get(plain)
    same = agreement(key, PLAIN, record.answers[key], theirs) if theirs and line.method else None
    return {
        "prompts": key.prompts,
        "batch": key.batch,
        "line": line.name,
        "method": line.method,
        "speculative_config": line.speculative or None,
        "gate": line.gate,
        "speed": asdict(Spread.of([total.speed for total in totals])),
        "to_plain": asdict(times) if times else None,
        "acceptance_rate": ran.accepted / ran.drafted if ran.drafted else None,
        "acceptance_length": 1 + ran.accepted / ran.drafts if ran.drafts else None,
        "acceptance_by_position": [a / d for a, d in zip(ran.accepted_at, ran.drafted_at, strict=True)],
        "drafts": ran.drafts,
        "drafted": ran.drafted,
        "accepted": ran.accepted,
        "steps": ran.steps,
        "tokens_per_step": ran.step_tokens / ran.steps if ran.steps else None,
        "step_ms": step_ms(ran),
        "same_text": {"equal": same.equal, "total": same.total, "first_difference": same.first_difference}
        if same
        else None,
    }


def step_ms(ran: MethodRan) -> dict[str, float]:
    """Milliseconds of the mean decode step by part."""
    return {part: 1000 * ran.parts.get(part, 0.0) / max(1, ran.steps) for part in (TARGET, DRAFTER, REST)}


def tables_of(results: list[dict[str, Any]]) -> list[Table]:
    """Two tables of one prompt set at one batch size: acceptance and cost; each fits eighty columns."""
    first = results[0]
    how = "one prompt at a time" if first["batch"] == 1 else f"{first['batch']} prompts at once"
    accepting = _table(f"{first['prompts']}, {how}: drafts accepted", ("rate", "length", "text", "by place, %"))
    costing = _table("a decode step, ms", ("target", "drafter", "rest", "tokens", "tok/s", "x plain"))
    for result in results:
        style = None if result["method"] else "bold"
        if result["method"]:
            accepting.add_row(*accepted_cells(result), style=style)
        costing.add_row(*cost_cells(result), style=style)
    return [accepting, costing]


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE)
    table.add_column("method", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="left" if name.startswith("by place") else "right", no_wrap=True)
    return table


def accepted_cells(result: dict[str, Any]) -> list[str]:
    """The cells of a row of the acceptance table."""
    rate, length, same = (result[name] for name in ("acceptance_rate", "acceptance_length", "same_text"))
    shares = result["acceptance_by_position"]
    places = " ".join(f"{100 * share:.0f}" for share in shares[:SHOWN]) + (" ..." if len(shares) > SHOWN else "")
    text = "" if same is None else "same" if same["equal"] == same["total"] else f"{same['equal']}/{same['total']}"
    return [
        _name(result),
        "" if rate is None else f"{rate:.0%}",
        "" if length is None else f"{length:.2f}",
        text,
        places,
    ]


def cost_cells(result: dict[str, Any]) -> list[str]:
    """The cells of a row of the cost table."""
    times, tokens = result["to_plain"], result["tokens_per_step"]
    return [
        _name(result),
        *(f"{ms:.1f}" for ms in result["step_ms"].values()),
        f"{tokens:.2f}" if tokens else "",
        f"{result['speed']['median']:.1f}",
        f"{times['median']:.2f}" if times else "",
    ]


def _name(result: dict[str, Any]) -> str:
    return str(result["line"]) + ("*" if result["gate"] else "")


def show(console: Console, report: dict[str, Any]) -> None:
    """Print tables, what the gate heads are, what was left out, and the conditions."""
    results = report["results"]
    for panel in dict.fromkeys((result["prompts"], result["batch"]) for result in results):
        for table in tables_of([r for r in results if (r["prompts"], r["batch"]) == panel]):
            console.print(table)
    if report["gates_are"]:
        console.print(f"* {report['gates_are']}", soft_wrap=True)
    for name, reason in {**report["left_out"], **report["broken"]}.items():
        console.print(f"left out: {name}: {reason}", style="yellow", soft_wrap=True)
    disturbed = report["conditions"]["disturbance"]
    if disturbed > QUIET:
        console.print(f"the machine was not quiet: other processes used {disturbed:.0%} of it", style="yellow")
    console.print(LEGEND, style="dim")
    console.print(conditions_line(report["conditions"]), style="dim")
