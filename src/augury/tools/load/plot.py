"""The Pareto picture: what one user gets against what all get, a line for each server."""

from __future__ import annotations

import warnings
from pathlib import Path
from textwrap import fill
from typing import Any

COLOURS = ("#1b6ca8", "#c05621", "#6b7178", "#2f855a")
INK, FAINT = "#22262b", "#6b7178"


def plot(results: dict[str, list[dict[str, Any]]], conditions: str, path: Path) -> None:
    """Draw the figures into a PNG; a point is a concurrency, and further up and right is better."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a model's name may have letters that the font lacks; they become boxes
        _drawn(results, conditions, path)


def _drawn(results: dict[str, list[dict[str, Any]]], conditions: str, path: Path) -> None:
    from matplotlib.figure import Figure  # not pyplot: no display is needed, and no state is left behind

    figure = Figure(figsize=(8.0, 5.6), facecolor="white", layout="constrained")
    axis = figure.subplots()
    for colour, (name, levels) in zip(COLOURS * 2, results.items(), strict=False):
        users = [level["output_throughput_per_user"] for level in levels]
        totals = [level["output_throughput"] for level in levels]
        axis.plot(users, totals, color=colour, linewidth=1.6, marker="o", markersize=5, label=name)
        for level, user, total in zip(levels, users, totals, strict=True):
            axis.annotate(
                str(level["max_concurrency"]), (user, total), xytext=(5, 5), textcoords="offset points", fontsize=8.5,
                color=colour,
            )  # fmt: skip
    every = [level for levels in results.values() for level in levels]
    axis.set_xlim(0, 1.12 * max(level["output_throughput_per_user"] for level in every) or 1)
    axis.set_ylim(0, 1.12 * max(level["output_throughput"] for level in every) or 1)
    axis.set_xlabel("output tokens a second, for one user", color=INK)
    axis.set_ylabel("output tokens a second, for all", color=INK)
    axis.grid(color="#eceef0", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#d5d8dc")
    axis.tick_params(colors=FAINT, labelsize=8.5, length=0)
    axis.legend(frameon=False, fontsize=9, loc="best")
    figure.suptitle(
        "Throughput against speed; numbers are concurrent streams", color=INK, fontsize=12, x=0.01, ha="left"
    )
    figure.supxlabel(fill(conditions, 110), color=FAINT, fontsize=7.5, x=0.01, ha="left")
    figure.savefig(path, dpi=160, format="png")
