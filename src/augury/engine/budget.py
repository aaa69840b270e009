"""How many draft nodes each request may spend in the coming step."""

from __future__ import annotations

from typing import Protocol

from augury.engine.request import Request
from augury.observe.steps import Step


class Budget(Protocol):
    """Decides on the host, before a pass, how much that pass may draft; the device cuts it near a request's end."""

    sampling: bool  # whether the pass that it last decided on is a sample of plain decoding

    def seat(self, request: Request) -> None:
        """Note that a request takes a slot."""
        ...

    def allow(self, requests: list[Request], rows: int) -> list[int]:
        """The most nodes that each request of a pass may draft; the pass has `rows` rows besides drafts."""
        ...

    def see(self, request: Request, depth: int, accepted: int) -> None:
        """Learn how deep a request's draft was and how many of its tokens were accepted."""
        ...

    def learn(self, step: Step) -> None:
        """Learn from the measured time of a pass."""
        ...


class FixedBudget:
    """The same number for every request."""

    sampling = False

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def seat(self, request: Request) -> None:
        """Not used by a fixed budget."""

    def allow(self, requests: list[Request], rows: int) -> list[int]:
        """The same number of nodes every step."""
        return [self.nodes] * len(requests)

    def see(self, request: Request, depth: int, accepted: int) -> None:
        """Not used by a fixed budget."""

    def learn(self, step: Step) -> None:
        """Not used by a fixed budget."""


class ScheduledBudget(FixedBudget):
    """A number from a table, by the number of requests in the step; 0 pauses drafting while that many run."""

    def __init__(self, table: list[int]) -> None:
        super().__init__(max(table))
        self.table = table  # index 0 is unused

    def allow(self, requests: list[Request], rows: int) -> list[int]:
        """The table's number for so many requests, or its last one if they are more than the table has."""
        return [self.table[min(len(requests), len(self.table) - 1)]] * len(requests)
