"""Text out of files, names of files among it, made fit for a terminal."""

from __future__ import annotations

from rich.markup import escape

STEERING = (*range(32), *range(127, 160))  # C0 and C1: cursor, colours, titles, the clipboard


def shown(text: str) -> str:
    """A text from a file as rich may show it: no markup, nothing that steers the terminal."""
    return escape(safe_text(text))


def safe_text(text: str, keep: str = "") -> str:
    """A text for `print`: without what steers the terminal (but for what is to be kept) and without half letters."""
    plain = text.translate({code: None for code in STEERING if chr(code) not in keep})
    return plain.encode("utf-8", "replace").decode()
