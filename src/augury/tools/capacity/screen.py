"""A plan for the terminal, and as JSON."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from augury.tools.capacity.plan import CapacityPlan
from augury.tools.capacity.simulate import SimulationResult

MEANING = (
    "TTFT: seconds to the first token, the wait included. TPOT: milliseconds a token after it. hits: prompt tokens "
    "found in the replica's cache. held: later turns routed to the replica that has their session. reading: time spent "
    "on prompts. running: requests at a time on a replica."
)
RULE = (
    "Sessions of the trace arrive as a Poisson process, a copy of one each, and share only what the trace's sessions "
    "share; the simulation routes them with the router of `augury serve --replicas`. Steps cost what the cost model "
    "says at the trace's mean context; prompts are read one after another, before decoding continues."
)


def show(console: Console, plan: CapacityPlan, gpus_each: int, conditions: str) -> None:
    """Print the plan."""
    load, asked = plan.load, f"p{100 * plan.load.percentile:g}"
    target = f"TTFT {load.ttft:g} s and TPOT {1e3 * load.tpot:g} ms at {asked}, {load.rate:g} requests a second"
    if plan.best is None:
        last = plan.tried[-1].replicas
        console.print(f"[bold red]not even {last} replicas[/bold red] give {target}", soft_wrap=True)
    else:
        gpus = f", {plan.best.replicas * gpus_each} GPUs" if gpus_each else ""
        console.print(f"[bold green]{plan.best.replicas} replicas{gpus}[/bold green] for {target}", soft_wrap=True)
    console.print(_table(plan, asked))
    by_model = plan.by_model if plan.by_model is not None else "no number of"
    console.print(f"By the closed form, without a simulation: {by_model} replicas.", soft_wrap=True)
    if plan.best is not None and plan.spread is not None:
        console.print(
            f"Sticky routing raises prefix hits from {plan.spread.hits:.1%} to {plan.best.hits:.1%} with "
            f"{plan.best.replicas} replicas.",
            soft_wrap=True,
        )
    for text in (MEANING, RULE, conditions):
        console.print(text, style="dim", soft_wrap=True)


def _table(plan: CapacityPlan, asked: str) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("replicas", justify="right", no_wrap=True)
    for name in (f"TTFT\n{asked}", "\np50", f"TPOT\n{asked}", "\np50", "hits", "held", "reading", "running"):
        table.add_column(name, justify="right", no_wrap=True)
    for outcome in plan.tried:
        good, best = outcome.meets(plan.load), outcome is plan.best
        table.add_row(str(outcome.replicas), *_cells(outcome), style="bold green" if best else "" if good else "red")
    if plan.spread is not None:
        table.add_row(f"{plan.spread.replicas} spread", *_cells(plan.spread), style="dim")
    return table


def _cells(outcome: SimulationResult) -> list[str]:
    times = [f"{outcome.asked_ttft:.3f}", f"{outcome.ttft[50]:.3f}"]
    times += [f"{1e3 * outcome.asked_tpot:.1f}", f"{1e3 * outcome.tpot[50]:.1f}"]
    return [*times, f"{outcome.hits:.1%}", f"{outcome.held:.1%}", f"{outcome.reading:.0%}", f"{outcome.running:.1f}"]


def as_record(plan: CapacityPlan, gpus_each: int, conditions: str) -> dict[str, Any]:
    """The plan as a JSON object."""
    load = plan.load
    return {
        "replicas": plan.replicas,
        "gpus": plan.replicas * gpus_each if plan.replicas is not None else None,
        "gpus_per_replica": gpus_each,
        "replicas_by_model": plan.by_model,
        "target": {"percentile": 100 * load.percentile, "ttft_s": load.ttft, "tpot_s": load.tpot, "rate": load.rate},
        "tokens_per_step": round(plan.pace.tokens_per_step, 4),
        "slots": plan.pace.slots,
        "cache_tokens": plan.pace.cache_tokens,
        "by_replicas": [_record(outcome) for outcome in plan.tried],
        "spread": _record(plan.spread) if plan.spread else None,
        "conditions": conditions,
    }


def _record(outcome: SimulationResult) -> dict[str, Any]:
    return {
        "replicas": outcome.replicas,
        "requests": outcome.requests,
        "ttft_s": {f"p{q}": round(value, 4) for q, value in outcome.ttft.items()},
        "tpot_s": {f"p{q}": round(value, 5) for q, value in outcome.tpot.items()},
        "ttft_at_percentile_s": round(outcome.asked_ttft, 4),
        "tpot_at_percentile_s": round(outcome.asked_tpot, 5),
        "prefix_hits": round(outcome.hits, 4),
        "turns_held": round(outcome.held, 4),
        "reading": round(outcome.reading, 4),
        "running": round(outcome.running, 2),
        "uneven": round(outcome.uneven, 3),
    }
