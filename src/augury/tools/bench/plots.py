"""The pictures of `augury bench`: engines, methods and cost curves as PNG files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.tools.advise.curve import CostCurve
from augury.tools.shared.plots import INK, figure, save, tidy

if TYPE_CHECKING:
    from augury.tools.bench.figures import ContenderFigures

OURS, OURS_DRAFTING, THEIRS, THEIRS_DRAFTING = "#1b6ca8", "#4fa3d9", "#8a8f98", "#c0c4ca"
PARTS = {"target": "#1b6ca8", "drafter": "#e0803a", "rest": "#c0c4ca"}


def _save(made: Any, path: Path, conditions: str, title: str = "") -> None:
    save(made, path, conditions, title)
    print(f"wrote {path}", file=sys.stderr)


def plot_bench(lines: list[ContenderFigures], conditions: str, path: Path) -> None:
    """Draw the figures into a PNG."""
    panels = list(dict.fromkeys((line.prompts, line.batch) for line in lines))
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    most = max(sum((line.prompts, line.batch) == panel for line in lines) for panel in panels)
    made, axes = figure(6.4 * columns, (0.42 * most + 1.1) * rows + 1.2, rows, columns)
    for spare in axes.flat[len(panels) :]:
        spare.set_visible(False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        _bench_panel(axis, [line for line in lines if (line.prompts, line.batch) == panel])
    _save(made, path, conditions, "New tokens a second: median, min to max (times transformers, plain)")


def _bench_panel(axis: Any, lines: list[ContenderFigures]) -> None:
    lines = list(reversed(lines))  # the first line of the table at the top
    speeds = [line.speed.median for line in lines]
    spread = [
        [line.speed.median - line.speed.low for line in lines],
        [line.speed.high - line.speed.median for line in lines],
    ]
    axis.barh(
        range(len(lines)),
        speeds,
        xerr=spread,
        height=0.68,
        color=[_color(line) for line in lines],
        error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2.5},
    )
    axis.set_yticks(range(len(lines)), [line.contender for line in lines], color=INK, fontsize=9.5)
    for y, line in enumerate(lines):
        times = f" ({line.to_baseline.median:.2f}x)" if line.to_baseline else ""
        axis.text(line.speed.high, y, f"  {line.speed.median:.1f}{times}", va="center", fontsize=8.5, color=INK)
    axis.set_xlim(0, max(line.speed.high for line in lines) * 1.3)  # room for the words after the bars
    batch = lines[0].batch
    how = "one prompt at a time" if batch == 1 else f"{batch} prompts: Augury concurrent, peers one after another"
    tidy(axis, f"{lines[0].prompts}: {how}")


def _color(line: ContenderFigures) -> str:
    drafting = line.acceptance_rate is not None
    if line.contender.startswith("augury"):
        return OURS_DRAFTING if drafting else OURS
    return THEIRS_DRAFTING if drafting else THEIRS


def plot_methods(results: list[dict[str, Any]], conditions: str, path: Path) -> None:
    """Draw the report's results into a PNG, a row for each prompt set and batch size."""
    panels = list(dict.fromkeys((result["prompts"], result["batch"]) for result in results))
    most = max(sum((r["prompts"], r["batch"]) == panel for r in results) for panel in panels)
    height = max(4.0, 0.26 * most + 1.2)
    made, axes = figure(13, height * len(panels) + 1.2, len(panels), 2)
    for (left, right), panel in zip(axes, panels, strict=True):
        mine = [r for r in results if (r["prompts"], r["batch"]) == panel]
        title = f"{panel[0]}, batch {panel[1]}"
        _places(left, mine, f"{title}: drafts accepted at each place, %")
        _times(right, mine, f"{title}: a decode step, ms (times plain)")
    note = "* gate heads, trained on these very prompts: a check of the code path, not of a method's quality"
    _save(made, path, conditions, note)


def _places(axis: Any, results: list[dict[str, Any]], title: str) -> None:
    """Acceptance by position, a line for each method that drafts; trees are dashed, parallel heads dotted."""
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
    tidy(axis, title, "place in the draft", legend={"fontsize": 7, "ncols": 2})


def _times(axis: Any, results: list[dict[str, Any]], title: str) -> None:
    rows = list(reversed(results))  # the first line of the table at the top
    begun = [0.0] * len(rows)
    for part, color in PARTS.items():
        widths = [row["step_ms"][part] for row in rows]
        axis.barh(range(len(rows)), widths, left=begun, height=0.7, color=color, label=part)
        begun = [a + b for a, b in zip(begun, widths, strict=True)]
    for y, (row, end) in enumerate(zip(rows, begun, strict=True)):
        times = f" {row['to_plain']['median']:.2f}x" if row["to_plain"] else ""
        axis.text(end, y, f" {row['tokens_per_step'] or 0:.2f} tokens{times}", va="center", fontsize=7, color=INK)
    axis.set_xlim(0, max(begun) * 1.3)
    names = [row["line"] + ("*" if row["gate"] else "") for row in rows]
    axis.set_yticks(range(len(rows)), names, fontsize=8, color=INK)
    tidy(axis, title, legend={"fontsize": 7, "loc": "lower right"})


def plot_curve(curve: CostCurve, conditions: str, path: Path) -> None:
    """Step time against rows, a line for each number of requests, a panel for each context."""
    contexts, sizes, _ = curve.axes
    made, (axes,) = figure(6.0 * len(contexts), 4.6, columns=len(contexts))
    for axis, context in zip(axes, contexts, strict=True):
        _curve_panel(axis, curve, context, sizes)
    _save(made, path, conditions)


def _curve_panel(axis: Any, curve: CostCurve, context: int, sizes: list[int]) -> None:
    for size in sizes:
        points = [p for p in curve.file.steps if (p.context, p.requests) == (context, size)]
        points.sort(key=lambda p: p.rows)
        rows = [p.rows for p in points]
        (line,) = axis.plot(rows, [p.ms for p in points], marker="o", markersize=3, label=f"{size} at once")
        axis.fill_between(rows, [p.low for p in points], [p.high for p in points], color=line.get_color(), alpha=0.2)
    axis.set_ylim(bottom=0)
    tidy(axis, f"ms of a step after {context} tokens", "rows a request")
