"""How many draft nodes a request may spend in the coming step."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Budget(Protocol):
    """Decides from each request's remaining tokens; more kinds (by batch size, goodput) come behind the same call."""

    def nodes(self, remaining: Tensor) -> Tensor:
        """Most nodes each request may draft; `remaining` tokens may still be emitted, the step's own extra included."""
        ...


class FixedBudget:
    """The same number for everyone, cut where a request nears its end: the last token needs no draft."""

    def __init__(self, nodes: int) -> None:
        self.limit = nodes

    def nodes(self, remaining: Tensor) -> Tensor:
        """At most `limit`, and never so many that accepting all would overshoot."""
        return (remaining - 1).clamp(min=0, max=self.limit)
