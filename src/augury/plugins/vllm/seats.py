"""Finds which known request a row of vLLM's batch belongs to: a custom drafter is given texts, but no request ids.

A request is recognised by what its text was a step ago: its length and its last tokens. Rows change places between
steps, so a text is looked for in all seats. Two texts may look alike, and then the wrong index is continued: that can
cost a draft, never a wrong token, since drafts are verified.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

PRINTED = 16  # tokens at the end of a text that identify it, with its length

Print = tuple[int, bytes]


def print_of(text: np.ndarray, length: int) -> Print:
    """The key by which a text of this length is recognised."""
    return length, text[max(0, length - PRINTED) : length].tobytes()


class Seats:
    """A seat for each text, kept while its request may resume; the least recently seen one is given away."""

    def __init__(self, most: int, leave: Callable[[int], None]) -> None:
        """`leave` is called when a seat's text is gone for good."""
        self._seats: OrderedDict[Print, list[int]] = OrderedDict()
        self._free = list(range(most - 1, -1, -1))
        self._leave = leave

    def find(self, texts: np.ndarray, rows: list[int], before: list[int], now: list[int]) -> list[tuple[int, bool]]:
        """The seat of each row's text and whether it is new; texts had `before` tokens when they were last seen."""
        found = [self._take(print_of(texts[row], length)) for row, length in zip(rows, before, strict=True)]
        seats = [(self._make(), True) if seat is None else (seat, False) for seat in found]
        for (seat, _), row, length in zip(seats, rows, now, strict=True):
            self._seats.setdefault(print_of(texts[row], length), []).append(seat)
        return seats

    def _take(self, key: Print) -> int | None:
        held = self._seats.get(key)
        if held is None:
            return None
        seat = held.pop(0)
        if not held:
            del self._seats[key]
        return seat

    def _make(self) -> int:
        if not self._free:
            key = next(iter(self._seats))
            seat = self._take(key)
            assert seat is not None
            self._leave(seat)
            return seat
        return self._free.pop()
