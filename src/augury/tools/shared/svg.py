"""Small charts for HTML reports as inline SVG; colours come from the page's style sheet, so both themes work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 560, 380
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 14, 44


class Point(NamedTuple):
    """One point of a scatter plot: an expected and an observed share."""

    expected: float
    observed: float
    label: str
    loud: bool = False


class Bar(NamedTuple):
    """One bar: a named figure."""

    label: str
    value: float
    kind: str = "a"  # a class in the style sheet


def scatter(points: Sequence[Point], across: str, up: str) -> str:
    """A scatter plot of observed over expected shares on logarithmic axes, with the line where they are equal."""
    floor = max(1e-5, min((min(p.expected, p.observed) for p in points if p.expected and p.observed), default=1e-3))
    decades = max(1, math.ceil(-math.log10(floor)))

    def place(share: float) -> float:
        return max(0.0, 1 + math.log10(max(share, 1e-12)) / decades)

    def x(share: float) -> float:
        return LEFT + place(share) * (WIDTH - LEFT - RIGHT)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - place(share) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for decade in range(decades + 1):
        share = 10.0**-decade
        parts.append(_line(x(share), TOP, x(share), HEIGHT - BOTTOM, "grid"))
        parts.append(_line(LEFT, y(share), WIDTH - RIGHT, y(share), "grid"))
        parts.append(_text(x(share), HEIGHT - BOTTOM + 16, f"{share:.6g}", "middle"))
        parts.append(_text(LEFT - 6, y(share) + 4, f"{share:.6g}", "end"))
    low = 10.0**-decades
    parts.append(_line(x(low), y(low), x(1), y(1), "same"))
    for point in sorted(points, key=lambda p: p.loud):
        title = f"{point.label}: expected {point.expected:.4f}, observed {point.observed:.4f}"
        style = "loud" if point.loud else "dot"
        parts.append(
            f'<circle class="{style}" cx="{x(point.expected):.1f}" cy="{y(point.observed):.1f}" r="3.2">'
            f"<title>{escape(title)}</title></circle>"
        )
    return _whole(parts, across, up)


def bars(figures: Sequence[Bar], across: str, up: str, most: float | None = None) -> str:
    """A bar chart with each figure on top of its bar."""
    tick, top = _scale(most or max((bar.value for bar in figures), default=1.0) * 1.05 or 1.0)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(figures))
    tall = HEIGHT - TOP - BOTTOM
    parts = []
    for i in range(round(top / tick) + 1):
        height = HEIGHT - BOTTOM - i * tick / top * tall
        parts.append(_line(LEFT, height, WIDTH - RIGHT, height, "grid"))
        parts.append(_text(LEFT - 6, height + 4, f"{i * tick:.3g}", "end"))
    for i, bar in enumerate(figures):
        high, middle = min(bar.value, top) / top * tall, LEFT + (i + 0.5) * step
        parts.append(
            f'<rect class="bar {bar.kind}" x="{middle - step * 0.36:.1f}" y="{HEIGHT - BOTTOM - high:.1f}" '
            f'width="{step * 0.72:.1f}" height="{high:.1f}"><title>{escape(bar.label)}: {bar.value:.4g}</title></rect>'
        )
        parts.append(_text(middle, HEIGHT - BOTTOM - high - 4, f"{bar.value:.3g}", "middle"))
        parts.append(_text(middle, HEIGHT - BOTTOM + 16, bar.label, "middle"))
    return _whole(parts, across, up)


class Whisker(NamedTuple):
    """A named figure with its confidence interval."""

    label: str
    value: float
    low: float
    high: float
    loud: bool = False


def whiskers(figures: Sequence[Whisker], across: str, mark: float) -> str:
    """Intervals listed vertically, each with a dot at its figure, and a dashed line at `mark`, the bar to exceed."""
    gutter, row = 210, 22
    tall = TOP + row * len(figures) + BOTTOM
    top = max([mark, *(figure.value for figure in figures)])
    tick, most = _scale(min(max([top, *(figure.high for figure in figures)]), 2 * top) * 1.02)

    def x(value: float) -> float:
        return gutter + min(max(value, 0.0), most) / most * (WIDTH - gutter - RIGHT)

    parts = []
    for i in range(round(most / tick) + 1):
        parts.append(_line(x(i * tick), TOP, x(i * tick), tall - BOTTOM, "grid"))
        parts.append(_text(x(i * tick), tall - BOTTOM + 16, f"{i * tick:.3g}", "middle"))
    parts.append(_line(x(mark), TOP, x(mark), tall - BOTTOM, "same"))
    for i, figure in enumerate(figures):
        y, title = TOP + (i + 0.5) * row, f"{figure.label}: {figure.value:.3g} ({figure.low:.3g}-{figure.high:.3g})"
        parts.append(_text(gutter - 8, y + 4, figure.label, "end"))
        parts.append(_line(x(figure.low), y, x(figure.high), y, "reach"))
        parts.append(
            f'<circle class="{"lead" if figure.loud else "dot"}" cx="{x(figure.value):.1f}" cy="{y:.1f}" r="4">'
            f"<title>{escape(title)}</title></circle>"
        )
    parts.append(_text((gutter + WIDTH - RIGHT) / 2, tall - 8, across, "middle"))
    inner = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {tall}" role="img" aria-label="{escape(across)}">{inner}</svg>'


def _scale(most: float) -> tuple[float, float]:
    """The tick distance, a round number, and the top of an axis for values up to `most`, about four ticks high."""
    unit = 10.0 ** math.floor(math.log10(most / 4))
    tick = next(unit * round_number for round_number in (1, 2, 2.5, 5, 10) if unit * round_number * 5 >= most)
    return tick, tick * math.ceil(most / tick - 1e-9)


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _whole(parts: Sequence[str], across: str, up: str) -> str:
    titles = _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, across, "middle")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    titles += f'<text transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(up)}</text>'
    inner = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(up)}">{inner}{titles}</svg>'
