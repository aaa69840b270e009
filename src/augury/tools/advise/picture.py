"""The picture of an advice: speed-up against requests at once, each method with its band."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from textwrap import fill
from typing import Any

from augury.tools.advise.advice import Advice

INK, FAINT = "#22262b", "#6b7178"
CLOSE = 0.08  # speed-ups whose labels would stand on each other


def draw(advice: Advice, path: Path) -> None:
    """Draw it into a PNG."""
    from matplotlib.figure import Figure  # not pyplot: no display is needed, and no state is left behind

    figure = Figure(figsize=(8.4, 5.2), facecolor="white", layout="constrained")
    axis = figure.subplots()
    loads = list(advice.question.loads)
    labelled: defaultdict[int, list[float]] = defaultdict(list)  # by load: where labels stand
    for line in advice.lines:
        if not line.by_load:
            continue
        name = line.candidate.method + ("" if line.candidate.yours else " (published acceptance)")
        places = [at.requests for at in line.by_load]
        (drawn,) = axis.plot(places, [at.decode.value for at in line.by_load], marker="o", markersize=4, label=name)
        low, high = [at.decode.low for at in line.by_load], [at.decode.high for at in line.by_load]
        axis.fill_between(places, low, high, color=drawn.get_color(), alpha=0.15, linewidth=0)
        for at in line.by_load:
            # Where another line passes close by, its label is above the dot and this one below.
            near = any(abs(at.decode.value - other) < CLOSE for other in labelled[at.requests])
            style: dict[str, Any] = {
                "fontsize": 7,
                "color": drawn.get_color(),
                "ha": "center",
                "textcoords": "offset points",
            }
            if at.tokens:
                place = at.requests, at.decode.value
                axis.annotate(f"K={at.tokens}", place, xytext=(0, -11 if near else 5), **style)
                labelled[at.requests].append(at.decode.value)
    axis.axhline(1.0, color=INK, linewidth=0.8, linestyle="--")
    if len(loads) > 1:
        axis.set_xscale("log", base=2)
    axis.set_xticks(loads, [str(load) for load in loads])
    axis.set_xlabel("requests at once", color=FAINT, fontsize=9)
    title = f"{advice.question.facts.name}: times plain decoding, 90 % interval"
    axis.set_title(title, loc="left", fontsize=11, color=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(colors=FAINT, labelsize=8, length=0)
    axis.grid(color="#eceef0", linewidth=0.8)
    axis.set_axisbelow(True)
    if any(line.by_load for line in advice.lines):
        axis.legend(fontsize=8, frameon=False)
    figure.supxlabel(fill(advice.cannot or "; ".join(advice.assumed), 130), color=FAINT, fontsize=7, x=0.01, ha="left")
    figure.savefig(path, dpi=140, format="png")
