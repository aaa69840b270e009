"""Marks that the screens of live servers share: states in colour, bars, sparklines."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from augury.tools.shared.safe_text import printable

STYLES = {"pass": "green", "warn": "bold yellow", "fail": "bold red", "unknown": "cyan", "note": "dim"}
WORDS = {"pass": "healthy", "warn": "warning", "fail": "fault", "unknown": "not judged", "note": "idle"}
BLOCKS = " ▁▂▃▄▅▆▇█"


def safe(text: str) -> str:
    """A server's text with unprintable characters replaced, since they could manipulate the terminal."""
    return printable(text.replace("\n", " "))


def spark(values: Sequence[float | None], top: float) -> str:
    """A sparkline: each value as a block in eighths of `top`, an unknown one as a dot."""
    return "".join("·" if value is None else _block(value, top) for value in values)


def fitted(values: Sequence[float | None], cells: int) -> list[float | None]:
    """A history reduced to so many cells, each the mean of its share, so that minutes fit a few columns."""
    if len(values) <= cells:
        return list(values)
    shares = [values[n * len(values) // cells : (n + 1) * len(values) // cells] for n in range(cells)]
    known = [[value for value in share if value is not None] for share in shares]
    return [sum(share) / len(share) if share else None for share in known]


def _block(value: float, top: float) -> str:
    if top <= 0:
        return BLOCKS[1]
    return BLOCKS[max(1, min(8, round(8 * value / top)))]


def by_position(rates: Sequence[float], width: int) -> Text:
    """Rates by position as a sparkline, followed by as many of the figures as fit."""
    curve = spark(rates, 1.0) if len(rates) <= width // 2 else spark(rates[: width // 2 - 1], 1.0) + "…"
    text = Text.assemble((curve, "cyan"), " ")
    for number, rate in enumerate(rates):
        said = f" {rate:.2f}"
        more = 0 if number == len(rates) - 1 else 2  # columns of the ellipsis for the rest
        if text.cell_len + len(said) + more > width:
            text.append(" …" if number else "")
            break
        text.append(said, "bold" if number == 0 else "")
    return text
