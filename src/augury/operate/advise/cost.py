"""What decoding costs, whoever knows it: a roofline of a GPU, or a curve measured on the machine itself."""

from __future__ import annotations

from typing import Protocol

from augury.operate.advise.drafters import Drafting


class Cost(Protocol):
    """Milliseconds of the parts that decoding is made of."""

    def step_ms(self, requests: int, rows_per_request: float, context: float) -> float:
        """One pass of the target with the verdict: so many requests, each with its known token and its draft."""
        ...

    def draft_ms(self, drafting: Drafting, requests: int, tokens: int, context: float) -> float:
        """One round of drafting up to so many tokens for each of them."""
        ...

    def read_ms(self, tokens: float) -> float:
        """Reading a prompt."""
        ...

    def spread(self, requests: int, rows_per_request: float, context: float) -> float:
        """One standard deviation of the logarithm of (plain step / this step): how far a ratio may be off."""
        ...

    @property
    def name(self) -> str:
        """What it was told from, in a few words."""
        ...

    @property
    def free_bytes(self) -> float:
        """Memory left beside the target's weights, as far as it is known."""
        ...
