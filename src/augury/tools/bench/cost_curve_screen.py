"""A cost curve for the terminal and as a file."""

from __future__ import annotations

import json
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from augury.config.errors import ConfigError
from augury.config.files import write_text
from augury.tools.advise.curve import CostCurve
from augury.tools.bench.screen import QUIET

LEGEND = (
    "ms: median of the steps of that size, quartiles in parentheses; a row is a known token or a drafted one. x: times "
    "a step without drafts. Drafting is not included; it is listed separately."
)


def store(curve: CostCurve, file: Path) -> None:
    """Write the file atomically."""
    try:
        write_text(file, json.dumps(curve.file.model_dump(), indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"--cost-curve {file}: cannot be written ({error.strerror}).") from None


def show(console: Console, curve: CostCurve, file: Path | None) -> None:
    """Print the curve, its drafting times and its conditions."""
    contexts, sizes, _ = curve.axes
    for context in contexts:
        console.print(table_of(curve, context, sizes))
    reading = curve.file.reading
    console.print(f"prefill: {reading.ms:.2f} ms per token ({reading.low:.2f}-{reading.high:.2f})")
    for point in curve.file.drafting:
        many = "1 request" if point.requests == 1 else f"{point.requests} requests"
        console.print(
            f"drafting by {point.method}, K={point.tokens}, {many}: {point.ms:.3f} ms "
            f"({point.low:.3f}-{point.high:.3f})"
        )
    disturbed = curve.file.conditions.get("disturbance", 0.0)
    if disturbed > QUIET:
        console.print(f"the machine was not quiet: other processes used {disturbed:.0%} of it", style="yellow")
    if file is not None:
        console.print(f"stored in {file}; use it: augury advise --target ... --cost-curve {file}", soft_wrap=True)
    console.print(LEGEND, style="dim")
    console.print(conditions_line(curve), style="dim")


def table_of(curve: CostCurve, context: int, sizes: list[int]) -> Table:
    """One context: a row per row count, two columns per number of requests; three of those fit eighty columns."""
    title = f"ms of a step at a context of {context} tokens"
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
    """The conditions the curve was measured under, as text."""
    told = curve.file.conditions
    libraries = ", ".join(f"{name} {number}" for name, number in told.get("versions", {}).items())
    return (
        f"{told.get('cpu')}, {told.get('threads')} threads; model {told.get('model')} in {told.get('dtype')}, greedy; "
        f"{told.get('cycles')} times each, sizes in turn; taken {told.get('taken')}; {libraries}"
    )
