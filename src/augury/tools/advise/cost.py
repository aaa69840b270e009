"""What decoding costs, by a roofline of a GPU or by a curve measured on the machine itself."""

from __future__ import annotations

from typing import Protocol

from augury.tools.advise.drafters import DraftingCost


class Cost(Protocol):
    """Milliseconds of the parts that decoding is made of."""

    def step_ms(self, requests: int, rows_per_request: float, context: float) -> float:
        """One pass of the target with the verdict: so many requests, each with its known token and its draft."""
        ...

    def draft_ms(self, drafting: DraftingCost, requests: int, tokens: int, context: float) -> float:
        """One round of drafting up to so many tokens for each of them."""
        ...

    def read_ms(self, tokens: float) -> float:
        """Reading a prompt."""
        ...

    def spread(self, requests: int, rows_per_request: float, context: float) -> float:
        """One standard deviation of the logarithm of (plain step / this step): how far a ratio may be off."""
        ...

    @property
    def leans(self) -> float:
        """How much too fast, as a logarithm, its speculative steps may be on top of that; 0: no lean is known."""
        ...

    @property
    def cannot(self) -> str | None:
        """Why the target cannot run there at all, if so."""
        ...

    def fits(self, requests: int, context: float, beside_bytes: float) -> bool:
        """Whether the caches of so many requests fit beside the weights and what drafting takes."""
        ...

    @property
    def name(self) -> str:
        """What it was inferred from, in a few words."""
        ...

    @property
    def free_bytes(self) -> float:
        """Memory left beside the target's weights, as far as it is known."""
        ...
