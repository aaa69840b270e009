"""How many draft nodes a request may spend in the coming step."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Budget(Protocol):
    """Decides from each request's remaining tokens and from how many requests run."""

    def nodes(self, remaining: Tensor, requests: int) -> Tensor:
        """Most nodes each request may draft; `remaining` tokens may still be emitted, the step's own extra included."""
        ...


class FixedBudget:
    """The same number for everyone, cut where a request nears its end: the last token needs no draft."""

    def __init__(self, nodes: int) -> None:
        self.limit = nodes

    def nodes(self, remaining: Tensor, requests: int) -> Tensor:
        """At most `limit`, and never so many that accepting all would overshoot."""
        return (remaining - 1).clamp(min=0, max=self.limit)


class ScheduledBudget:
    """As many as a table says for the number of requests in the step; 0 pauses drafting while that many run."""

    def __init__(self, table: list[int]) -> None:
        self.table = table  # index 0 is unused

    def nodes(self, remaining: Tensor, requests: int) -> Tensor:
        """At most the table's number, and never so many that accepting all would overshoot."""
        return (remaining - 1).clamp(min=0, max=self.table[min(requests, len(self.table) - 1)])
