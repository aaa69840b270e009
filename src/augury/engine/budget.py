"""How many draft nodes a request may spend in the coming step."""

from __future__ import annotations

from typing import Protocol


class Budget(Protocol):
    """Decides on the host, from how many requests run; the device cuts it where a request nears its end."""

    def limit(self, requests: int) -> int:
        """Most nodes each of them may draft."""
        ...


class FixedBudget:
    """The same number, whoever runs."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def limit(self, requests: int) -> int:
        """Always the same."""
        return self.nodes


class ScheduledBudget:
    """As many as a table says for the number of requests in the step; 0 pauses drafting while that many run."""

    def __init__(self, table: list[int]) -> None:
        self.table = table  # index 0 is unused

    def limit(self, requests: int) -> int:
        """The table's number; its last one for more requests than it has."""
        return self.table[min(requests, len(self.table) - 1)]
