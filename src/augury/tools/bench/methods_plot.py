"""The picture of `augury bench --methods`: acceptance by place as lines, the time of a step as stacked bars."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

from augury.tools.bench.plot import FAINT, INK

COLORS = {"target": "#1b6ca8", "drafter": "#e0803a", "rest": "#c0c4ca"}


def draw(results: list[dict[str, Any]], conditions: str, path: Path) -> None:
    """Draw the report's results into a PNG, a row for each prompt set and batch size."""
    from matplotlib.figure import Figure  # not pyplot: no display is needed, and no state is left behind

    panels = list(dict.fromkeys((result["prompts"], result["batch"]) for result in results))
    most = max(sum((r["prompts"], r["batch"]) == panel for r in results) for panel in panels)
    height = max(4.0, 0.26 * most + 1.2)
    figure = Figure(figsize=(13, height * len(panels) + 1.2), facecolor="white", layout="constrained")
    axes = figure.subplots(len(panels), 2, squeeze=False)
    for (left, right), panel in zip(axes, panels, strict=True):
        mine = [r for r in results if (r["prompts"], r["batch"]) == panel]
        title = f"{panel[0]}, batch {panel[1]}"
        _places(left, mine, f"{title}: drafts accepted at each place, %")
        _times(right, mine, f"{title}: a decode step, ms (times plain)")
    note = "* gate heads, trained on these very prompts: a check of the code path, not of a method's quality"
    figure.suptitle(note, color=INK, fontsize=11, x=0.01, ha="left")
    figure.supxlabel(fill(conditions, 150), color=FAINT, fontsize=7.5, x=0.01, ha="left")
    figure.savefig(path, dpi=140, format="png")


def _places(axis: Any, results: list[dict[str, Any]], title: str) -> None:
    """A line for each method that drafts; trees are dashed."""
    from matplotlib import colormaps

    drafting = [r for r in results if r["acceptance_by_position"]]
    families = list(dict.fromkeys(r["method"] for r in drafting))
    for result in drafting:
        shares = [100 * share for share in result["acceptance_by_position"]]
        style = "--" if result["line"].endswith("tree") else ":" if result["line"].endswith("parallel") else "-"
        color = colormaps["tab10"](families.index(result["method"]) % 10)
        name = result["line"] + ("*" if result["gate"] else "")
        axis.plot(range(1, len(shares) + 1), shares, style, marker="o", markersize=3, color=color, label=name)
    axis.set_ylim(0, 105)
    axis.set_xlabel("place in the draft", color=FAINT, fontsize=9)
    if drafting:
        axis.legend(fontsize=7, frameon=False, ncols=2, loc="best")
    _tidy(axis, title)


def _times(axis: Any, results: list[dict[str, Any]], title: str) -> None:
    rows = list(reversed(results))  # the first line of the table at the top
    begun = [0.0] * len(rows)
    for part, color in COLORS.items():
        widths = [row["step_ms"][part] for row in rows]
        axis.barh(range(len(rows)), widths, left=begun, height=0.7, color=color, label=part)
        begun = [a + b for a, b in zip(begun, widths, strict=True)]
    for y, (row, end) in enumerate(zip(rows, begun, strict=True)):
        times = f" {row['to_plain']['median']:.2f}x" if row["to_plain"] else ""
        axis.text(end, y, f" {row['tokens_per_step'] or 0:.2f} tokens{times}", va="center", fontsize=7, color=INK)
    axis.set_xlim(0, max(begun) * 1.3)
    names = [row["line"] + ("*" if row["gate"] else "") for row in rows]
    axis.set_yticks(range(len(rows)), names, fontsize=8, color=INK)
    axis.legend(fontsize=7, frameon=False, loc="lower right")
    _tidy(axis, title)


def _tidy(axis: Any, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=10, color=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(colors=FAINT, labelsize=8, length=0)
    axis.grid(color="#eceef0", linewidth=0.8)
    axis.set_axisbelow(True)
