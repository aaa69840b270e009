"""How many draft nodes each request may spend in the coming step."""

from __future__ import annotations

from typing import Protocol

from augury.engine.request import Request
from augury.observe.steps import Step


class Budget(Protocol):
    """Decides on the host, before a pass, how much that pass may draft; the device cuts it near a request's end."""

    sampling: bool  # whether the pass that it was asked for last is a sample of plain decoding

    def seat(self, request: Request) -> None:
        """A request takes a slot."""
        ...

    def allow(self, requests: list[Request], rows: int) -> list[int]:
        """Most nodes each of the requests of a pass may draft; the pass has `rows` rows besides drafts."""
        ...

    def see(self, request: Request, depth: int, accepted: int) -> None:
        """Hear how far a request's draft went and how much of it was accepted."""
        ...

    def learn(self, step: Step) -> None:
        """Take in the time of a pass."""
        ...


class FixedBudget:
    """The same number for every request."""

    sampling = False

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def seat(self, request: Request) -> None:
        """Not used by a fixed budget."""

    def allow(self, requests: list[Request], rows: int) -> list[int]:
        """The same number of tokens every step."""
        return [self.nodes] * len(requests)

    def see(self, request: Request, depth: int, accepted: int) -> None:
        """Not used by a fixed budget."""

    def learn(self, step: Step) -> None:
        """Not used by a fixed budget."""


class ScheduledBudget(FixedBudget):
    """As many as a table says for the number of requests in the step; 0 pauses drafting while that many run."""

    def __init__(self, table: list[int]) -> None:
        super().__init__(max(table))
        self.table = table  # index 0 is unused

    def allow(self, requests: list[Request], rows: int) -> list[int]:
        """The table's number; its last one for more requests than it has."""
        return [self.table[min(len(requests), len(self.table) - 1)]] * len(requests)
