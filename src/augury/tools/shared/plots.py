"""The look of every PNG that a tool draws; pages have their own drawings, which need no matplotlib (svg.py)."""

from __future__ import annotations

import warnings
from pathlib import Path
from textwrap import fill
from typing import Any

INK, FAINT, GRID = "#22262b", "#6b7178", "#eceef0"
COLORS = ("#1b6ca8", "#c05621", "#2a9d8f", "#e0a030", "#7b5ea7", "#8a8f98")


def figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """A white figure in inches, and its axes in rows and columns."""
    from matplotlib.figure import Figure  # not pyplot: no display is needed, and no state is left behind

    made = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    axes = made.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_prop_cycle(color=COLORS)
    return made, axes


def tidy(
    axis: Any, title: str = "", across: str = "", up: str = "", grid: str = "both", legend: dict[str, Any] | None = None
) -> None:
    """Title, names of the axes, a faint grid, no frame, and a legend where lines have names (an empty one: none)."""
    axis.set_title(title, loc="left", fontsize=10, color=INK)
    axis.set_xlabel(across, color=FAINT, fontsize=9)
    axis.set_ylabel(up, color=FAINT, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#d5d8dc")
    axis.tick_params(colors=FAINT, labelsize=8, length=0)
    axis.grid(axis=grid, color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    if axis.get_legend_handles_labels()[0] and legend != {}:
        axis.legend(frameon=False, **({"fontsize": 8, "loc": "best"} | (legend or {})))


def save(made: Any, path: Path, conditions: str, title: str = "") -> None:
    """Write the PNG with what its figures depend on below it."""
    if title:
        made.suptitle(title, color=INK, fontsize=12, x=0.01, ha="left")
    across = round(16 * made.get_size_inches()[0])  # characters of the small print
    made.supxlabel(fill(conditions, across), color=FAINT, fontsize=7.5, x=0.01, ha="left")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a model's name may have letters that the font lacks; they become boxes
        made.savefig(path, dpi=160, format="png")
