"""A cost curve as people read it: a table, a picture, a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from augury.config.errors import ConfigError
from augury.config.files import write_text
from augury.tools.advise.curve import CostCurve
from augury.tools.bench.plot import FAINT, INK
from augury.tools.bench.report import QUIET

LEGEND = (
    "ms: median of the steps of that size, quartiles behind it; a row is a known token or a drafted one. x: times a "
    "step without drafts. Drafting is not in it, it stands by itself."
)


def store(curve: CostCurve, file: Path) -> None:
    """Write the file, all or nothing."""
    try:
        write_text(file, json.dumps(curve.file.model_dump(), indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"--cost-curve {file}: cannot be written ({error.strerror}).") from None


def show(console: Console, curve: CostCurve, file: Path | None) -> None:
    """Print everything."""
    contexts, sizes, _ = curve.axes
    for context in contexts:
        console.print(table_of(curve, context, sizes))
    reading = curve.file.reading
    console.print(f"reading a prompt: {reading.ms:.2f} ms a token ({reading.low:.2f}-{reading.high:.2f})")
    for point in curve.file.drafting:
        many = "1 request" if point.requests == 1 else f"{point.requests} requests"
        console.print(
            f"drafting by {point.method}, K={point.tokens}, {many}: {point.ms:.3f} ms "
            f"({point.low:.3f}-{point.high:.3f})"
        )
    disturbed = curve.file.conditions.get("disturbance", 0.0)
    if disturbed > QUIET:
        console.print(f"not a quiet machine: other processes took {disturbed:.0%} of it meanwhile", style="yellow")
    if file is not None:
        console.print(f"stored in {file}; use it: augury advise --target ... --cost-curve {file}", soft_wrap=True)
    console.print(LEGEND, style="dim")
    console.print(conditions_line(curve), style="dim")


def table_of(curve: CostCurve, context: int, sizes: list[int]) -> Table:
    """One context: a line a row count, two columns a number of requests; the first three fit eighty columns."""
    title = f"ms of a step, {context} tokens behind"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE)
    table.add_column("rows each", justify="right")
    for size in sizes:
        table.add_column("1 request" if size == 1 else f"{size} requests", justify="right", no_wrap=True)
        table.add_column("x", justify="right")
    points = {(p.context, p.requests, p.rows): p for p in curve.file.steps}
    for rows in curve.axes[2]:
        cells = [str(rows)]
        for size in sizes:
            here, plain = points[context, size, rows], points[context, size, 1]
            cells += [f"{here.ms:.1f} ({here.low:.1f}-{here.high:.1f})", f"{here.ms / plain.ms:.2f}"]
        table.add_row(*cells)
    return table


def conditions_line(curve: CostCurve) -> str:
    """What it depends on."""
    told = curve.file.conditions
    libraries = ", ".join(f"{name} {number}" for name, number in told.get("versions", {}).items())
    return (
        f"{told.get('cpu')}, {told.get('threads')} threads; model {told.get('model')} in {told.get('dtype')}, greedy; "
        f"{told.get('cycles')} times each, sizes in turn; taken {told.get('taken')}; {libraries}"
    )


def draw(curve: CostCurve, path: Path) -> None:
    """Step time against rows, a line for each number of requests, a panel for each context."""
    from matplotlib.figure import Figure

    contexts, sizes, _ = curve.axes
    figure = Figure(figsize=(6.0 * len(contexts), 4.6), facecolor="white", layout="constrained")
    for axis, context in zip(figure.subplots(1, len(contexts), squeeze=False)[0], contexts, strict=True):
        _panel(axis, curve, context, sizes)
    figure.supxlabel(fill(conditions_line(curve), 150), color=FAINT, fontsize=7.5, x=0.01, ha="left")
    figure.savefig(path, dpi=140, format="png")
    print(f"wrote {path}", file=sys.stderr)


def _panel(axis: Any, curve: CostCurve, context: int, sizes: list[int]) -> None:
    for size in sizes:
        points = [p for p in curve.file.steps if (p.context, p.requests) == (context, size)]
        points.sort(key=lambda p: p.rows)
        rows = [p.rows for p in points]
        (line,) = axis.plot(rows, [p.ms for p in points], marker="o", markersize=3, label=f"{size} at once")
        axis.fill_between(rows, [p.low for p in points], [p.high for p in points], color=line.get_color(), alpha=0.2)
    axis.set_title(f"ms of a step behind {context} tokens", loc="left", fontsize=10, color=INK)
    axis.set_xlabel("rows a request", color=FAINT, fontsize=9)
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="#eceef0", linewidth=0.8)
