"""The plot of an advice: speed-up against concurrent requests, each method with its interval as a band."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from augury.tools.advise.advice import Advice
from augury.tools.advise.verdicts import JudgedMethod
from augury.tools.shared.plots import INK, figure, save, tidy

Labelled = defaultdict[int, list[float]]  # by load: speed-ups that already have a label
CLOSE = 0.08  # labels of speed-ups closer than this would overlap


def draw(advice: Advice, path: Path) -> None:
    """Draw the advice into a PNG file."""
    made, ((axis,),) = figure(8.4, 5.2)
    labelled: Labelled = defaultdict(list)
    for line in advice.lines:
        if line.by_load:
            _draw_line(axis, line, labelled)
    axis.axhline(1.0, color=INK, linewidth=0.8, linestyle="--")
    loads = list(advice.question.loads)
    if len(loads) > 1:
        axis.set_xscale("log", base=2)
    axis.set_xticks(loads, [str(load) for load in loads])
    tidy(axis, f"{advice.question.facts.name}: times plain decoding, 90 % interval", "requests at once")
    save(made, path, advice.cannot or "; ".join(advice.assumed))


def _draw_line(axis: Any, line: JudgedMethod, labelled: Labelled) -> None:
    """Draw a method's speed-up at each load with its band and K."""
    name = line.candidate.method + ("" if line.candidate.yours else " (published acceptance)")
    places = [at.requests for at in line.by_load]
    (drawn,) = axis.plot(places, [at.decode.value for at in line.by_load], marker="o", markersize=4, label=name)
    low, high = [at.decode.low for at in line.by_load], [at.decode.high for at in line.by_load]
    axis.fill_between(places, low, high, color=drawn.get_color(), alpha=0.15, linewidth=0)
    style = {"fontsize": 7, "color": drawn.get_color(), "ha": "center", "textcoords": "offset points"}
    for at in line.by_load:
        if at.tokens:
            # Where another line passes close by, its label is above the dot and this one below.
            near = any(abs(at.decode.value - other) < CLOSE for other in labelled[at.requests])
            place = at.requests, at.decode.value
            axis.annotate(f"K={at.tokens}", place, xytext=(0, -11 if near else 5), **style)
            labelled[at.requests].append(at.decode.value)
