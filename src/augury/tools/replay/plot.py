"""The picture of a replay: acceptance by position, and tokens a step over the course of the trace."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

from augury.tools.replay.figures import Summary

INK, FAINT = "#22262b", "#6b7178"
COLORS = ("#1b6ca8", "#d1495b", "#2a9d8f", "#e0a030", "#7b5ea7", "#8a8f98")

LEGEND = 6  # names in a line


def plot(summaries: list[Summary], conditions: str, path: Path) -> None:
    """Draw a PNG."""
    from matplotlib.figure import Figure  # not pyplot: no display is needed, and no state is left behind

    figure = Figure(figsize=(12.8, 4.8), facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    _by_position(left, summaries)
    _over_time(right, summaries)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color("#d5d8dc")
        axis.tick_params(colors=FAINT, labelsize=8, length=0)
        axis.grid(color="#eceef0", linewidth=0.8)
        axis.set_axisbelow(True)
    # One for both, above them: inside the axes it would lie on the lines.
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=LEGEND, fontsize=8, frameon=False)
    figure.supxlabel(fill(conditions, 160), color=FAINT, fontsize=7.5, x=0.01, ha="left")
    figure.savefig(path, dpi=160, format="png")


def _by_position(axis: Any, summaries: list[Summary]) -> None:
    for i, summary in enumerate(summaries):
        color, places = COLORS[i % len(COLORS)], range(1, len(summary.accepted_at) + 1)
        axis.plot(places, summary.marginal, color=color, marker="o", markersize=3, label=summary.name)
        axis.plot(places, summary.where_drafted, color=color, linestyle=":", linewidth=1)
    axis.set_ylim(0, 1)
    title = "Accepted by position: of all drafts (line), where all before were accepted (dots)"
    axis.set_title(title, loc="left", fontsize=9.5, color=INK)
    axis.set_xlabel("position in the draft", color=FAINT, fontsize=8)


def _over_time(axis: Any, summaries: list[Summary]) -> None:
    for i, summary in enumerate(summaries):
        done, places = 0, []
        for part in summary.course:
            done += part.responses
            places.append(done)
        color = COLORS[i % len(COLORS)]
        axis.plot(places, [part.acceptance_length for part in summary.course], color=color, label=summary.name)
        axis.plot(places, [part.tokens_per_step for part in summary.course], color=color, linestyle=":", linewidth=1)
    axis.set_ylim(bottom=1)
    title = "Over the trace: acceptance length of drafted steps (line), tokens a step (dots)"
    axis.set_title(title, loc="left", fontsize=9.5, color=INK)
    axis.set_xlabel("responses", color=FAINT, fontsize=8)
