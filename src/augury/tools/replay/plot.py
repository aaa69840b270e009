"""The plot of a replay: acceptance by position, and tokens per step over the course of the trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from augury.tools.replay.figures import Summary
from augury.tools.shared.plots import COLORS, figure, save, tidy

LEGEND = 6  # names per line


def plot(summaries: list[Summary], conditions: str, path: Path) -> None:
    """Draw a PNG."""
    made, ((left, right),) = figure(12.8, 4.8, columns=2)
    _by_position(left, summaries)
    _over_time(right, summaries)
    # One legend above both; inside the axes it would cover the lines.
    made.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=LEGEND, fontsize=8, frameon=False)
    save(made, path, conditions)


def _by_position(axis: Any, summaries: list[Summary]) -> None:
    for i, summary in enumerate(summaries):
        color, places = COLORS[i % len(COLORS)], range(1, len(summary.accepted_at) + 1)
        axis.plot(places, summary.marginal, color=color, marker="o", markersize=3, label=summary.name)
        axis.plot(places, summary.where_drafted, color=color, linestyle=":", linewidth=1)
    axis.set_ylim(0, 1)
    title = "Accepted by position: of all drafts (line), where all before were accepted (dots)"
    tidy(axis, title, "position in the draft", legend={})


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
    tidy(axis, title, "responses", legend={})
