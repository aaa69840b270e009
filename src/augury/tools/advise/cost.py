"""What decoding costs, by a roofline of a GPU or by a curve measured on the machine itself."""

from __future__ import annotations

from typing import Protocol

from augury.tools.advise.drafters import DraftingCost


class Cost(Protocol):
    """A cost model of decoding; times in milliseconds."""

    def step_ms(self, requests: int, rows_per_request: float, context: float) -> float:
        """One forward pass of the target with verification; the rows of a request are its known token and its draft."""
        ...

    def draft_ms(self, drafting: DraftingCost, requests: int, tokens: int, context: float) -> float:
        """One round of drafting up to `tokens` tokens for each request."""
        ...

    def read_ms(self, tokens: float) -> float:
        """Prefill of this many prompt tokens."""
        ...

    def spread(self, requests: int, rows_per_request: float, context: float) -> float:
        """One standard deviation of the logarithm of (plain step / this step): how far a ratio may be off."""
        ...

    @property
    def leans(self) -> float:
        """Bias on top of that: how much too fast, as a logarithm, speculative steps may be predicted; 0: none known."""
        ...

    @property
    def cannot(self) -> str | None:
        """Why the target cannot run there at all; None if it can."""
        ...

    def fits(self, requests: int, context: float, beside_bytes: float) -> bool:
        """Whether the KV caches of so many requests fit in memory with the weights and `beside_bytes` for drafting."""
        ...

    @property
    def name(self) -> str:
        """Where the costs come from, in a few words."""
        ...

    @property
    def free_bytes(self) -> float:
        """Memory left after the target's weights; infinite if it is not known."""
        ...
