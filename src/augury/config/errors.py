"""Errors that teach: what is wrong, the value seen, what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from augury.methods.errors import ConfigError, problem, shown

__all__ = ["ConfigError", "problem", "shown", "unknown_keyword"]


def unknown_keyword(name: str, known: Iterable[str], where: str) -> TypeError:
    """The error for an unknown keyword, with the nearest known one; a TypeError, as Python's own."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}?" if close else "remove it."
    return TypeError(f"{where}: unexpected keyword argument {name!r}; {hint}")
