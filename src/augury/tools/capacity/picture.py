"""The plot of a plan: latency against the number of replicas, with the targets."""

from __future__ import annotations

from pathlib import Path

from augury.tools.capacity.plan import CapacityPlan
from augury.tools.shared.plots import COLORS, INK, figure, save, tidy


def draw(plan: CapacityPlan, conditions: str, path: Path) -> None:
    """Draw the plan into a PNG file."""
    made, ((left, right),) = figure(10.4, 4.2, columns=2)
    counts = [outcome.replicas for outcome in plan.tried]
    asked = f"p{100 * plan.load.percentile:g}"
    left.plot(counts, [outcome.asked_ttft for outcome in plan.tried], marker="o", markersize=4, label=asked)
    left.plot(counts, [outcome.ttft[50] for outcome in plan.tried], marker="o", markersize=3, label="p50")
    left.axhline(plan.load.ttft, color=INK, linewidth=0.8, linestyle="--")
    left.set_yscale("log")
    right.plot(counts, [1e3 * outcome.asked_tpot for outcome in plan.tried], marker="o", markersize=4, label=asked)
    right.plot(counts, [1e3 * outcome.tpot[50] for outcome in plan.tried], marker="o", markersize=3, label="p50")
    right.axhline(1e3 * plan.load.tpot, color=INK, linewidth=0.8, linestyle="--")
    for axis in (left, right):
        if plan.replicas is not None:
            axis.axvline(plan.replicas, color=COLORS[2], linewidth=0.8)
    tidy(left, "Seconds to the first token", "replicas")
    tidy(right, "Milliseconds a token", "replicas")
    save(made, path, conditions)
