"""Makes text from files and servers, including file names, safe for a terminal."""

from __future__ import annotations

from rich.markup import escape

STEERING = (*range(32), *range(127, 160))  # C0 and C1: cursor, colours, titles, the clipboard


def without_markup(text: str) -> str:
    """A text made safe for rich: markup is escaped and control characters are removed."""
    return escape(safe_text(text))


def printable(text: str) -> str:
    """A text with every unprintable character replaced by a question mark, so that a reader sees where they were."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def safe_text(text: str, keep: str = "") -> str:
    """A text safe for `print`: without control characters other than those in `keep`, and without lone surrogates."""
    plain = text.translate({code: None for code in STEERING if chr(code) not in keep})
    return plain.encode("utf-8", "replace").decode()
