"""Text out of files, made fit for a terminal."""

from __future__ import annotations

from rich.markup import escape


def shown(text: str) -> str:
    """A text from a file as the terminal may show it: no markup, nothing that steers it."""
    return escape(text.translate(dict.fromkeys([*range(32), *range(127, 160)])))
