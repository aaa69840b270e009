"""The style of every PNG that a tool draws; HTML pages use svg.py instead, which needs no matplotlib."""

from __future__ import annotations

import warnings
from pathlib import Path
from textwrap import fill
from typing import Any

INK, FAINT, GRID = "#22262b", "#6b7178", "#eceef0"
COLORS = ("#1b6ca8", "#c05621", "#2a9d8f", "#e0a030", "#7b5ea7", "#8a8f98")


def figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """A white figure of a size in inches, and its axes, [rows, columns]."""
    from matplotlib.figure import Figure  # not pyplot, which keeps global state and may need a display

    made = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    axes = made.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_prop_cycle(color=COLORS)
    return made, axes


def tidy(
    axis: Any, title: str = "", across: str = "", up: str = "", grid: str = "both", legend: dict[str, Any] | None = None
) -> None:
    """Style an axis: title, labels, a faint grid, no frame, and a legend if lines have names (`legend={}`: none)."""
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
    """Write the PNG with the conditions of its figures below it."""
    if title:
        made.suptitle(title, color=INK, fontsize=12, x=0.01, ha="left")
    across = round(16 * made.get_size_inches()[0])  # characters of the small print
    made.supxlabel(fill(conditions, across), color=FAINT, fontsize=7.5, x=0.01, ha="left")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that the font lacks, as in a model's name, become boxes
        made.savefig(path, dpi=160, format="png")
