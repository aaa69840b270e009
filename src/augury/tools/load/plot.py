"""The Pareto plot: throughput per user against total throughput, one line per server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from augury.tools.shared.plots import COLORS, figure, save, tidy


def plot(results: dict[str, list[dict[str, Any]]], conditions: str, path: Path) -> None:
    """Plot the figures into a PNG; each point is a concurrency, and up and right is better."""
    made, axes = figure(8.0, 5.6)
    axis = axes[0, 0]
    for color, (name, levels) in zip(COLORS * 2, results.items(), strict=False):
        users = [level["output_throughput_per_user"] for level in levels]
        totals = [level["output_throughput"] for level in levels]
        axis.plot(users, totals, color=color, linewidth=1.6, marker="o", markersize=5, label=name)
        for level, *place in zip(levels, users, totals, strict=True):
            place_of = {"xytext": (5, 5), "textcoords": "offset points", "fontsize": 8.5, "color": color}
            axis.annotate(str(level["max_concurrency"]), tuple(place), **place_of)
    every = [level for levels in results.values() for level in levels]
    axis.set_xlim(0, 1.12 * max(level["output_throughput_per_user"] for level in every) or 1)
    axis.set_ylim(0, 1.12 * max(level["output_throughput"] for level in every) or 1)
    tidy(axis, across="output tokens a second, for one user", up="output tokens a second, for all")
    save(made, path, conditions, "Throughput against speed; numbers are concurrent streams")
