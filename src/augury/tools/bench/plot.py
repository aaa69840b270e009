"""The picture of a bench: bars with their spread, a panel for each prompt set and batch size."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

from augury.tools.bench.figures import Line

OURS, OURS_DRAFTING, THEIRS, THEIRS_DRAFTING = "#1b6ca8", "#4fa3d9", "#8a8f98", "#c0c4ca"
INK, FAINT = "#22262b", "#6b7178"


def plot(lines: list[Line], conditions: str, path: Path) -> None:
    """Draw the figures into a PNG."""
    from matplotlib.figure import Figure  # not pyplot: no display is needed, and no state is left behind

    panels = list(dict.fromkeys((line.prompts, line.batch) for line in lines))
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    most = max(sum((line.prompts, line.batch) == panel for line in lines) for panel in panels)
    figure = Figure(figsize=(6.4 * columns, (0.42 * most + 1.1) * rows + 1.2), facecolor="white", layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for spare in axes.flat[len(panels) :]:
        spare.set_visible(False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        _panel(axis, [line for line in lines if (line.prompts, line.batch) == panel])
    title = "New tokens a second: median, min to max (times transformers, plain)"
    figure.suptitle(title, color=INK, fontsize=13, x=0.01, ha="left")
    figure.supxlabel(fill(conditions, 78 * columns), color=FAINT, fontsize=7.5, x=0.01, ha="left")
    figure.savefig(path, dpi=160, format="png")


def _panel(axis: Any, lines: list[Line]) -> None:
    lines = list(reversed(lines))  # the first line of the table at the top
    speeds = [line.speed.median for line in lines]
    spread = [
        [line.speed.median - line.speed.low for line in lines],
        [line.speed.high - line.speed.median for line in lines],
    ]
    axis.barh(
        range(len(lines)), speeds, xerr=spread, height=0.68, color=[_color(line) for line in lines],
        error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2.5},
    )  # fmt: skip
    axis.set_yticks(range(len(lines)), [line.contender for line in lines], color=INK, fontsize=9.5)
    for y, line in enumerate(lines):
        times = f" ({line.to_baseline.median:.2f}x)" if line.to_baseline else ""
        axis.text(line.speed.high, y, f"  {line.speed.median:.1f}{times}", va="center", fontsize=8.5, color=INK)
    axis.set_xlim(0, max(line.speed.high for line in lines) * 1.3)  # room for the words behind the bars
    batch = lines[0].batch
    how = "one prompt at a time" if batch == 1 else f"{batch} prompts: Augury concurrent, peers one after another"
    axis.set_title(f"{lines[0].prompts}: {how}", loc="left", fontsize=10.5, color=INK)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color("#d5d8dc")
    axis.tick_params(axis="x", colors=FAINT, labelsize=8, length=0)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color="#eceef0", linewidth=0.8)
    axis.set_axisbelow(True)


def _color(line: Line) -> str:
    drafting = line.acceptance_rate is not None
    if line.contender.startswith("augury"):
        return OURS_DRAFTING if drafting else OURS
    return THEIRS_DRAFTING if drafting else THEIRS
