"""The seam between the engine and a drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from augury.verify.sampling import Outcome
from augury.verify.tree import Draft


@dataclass(frozen=True, slots=True)
class Needs:
    """What a drafter wants from the target besides tokens."""

    features: tuple[int, ...] = ()  # layer ids whose residual streams it reads; id j is the stream after j layers


class Drafter(Protocol):
    """Guesses what comes next; drafts decide how fast text comes, never what it is."""

    name: str
    needs: Needs
    branching: bool  # whether a node may have more than one child

    def propose(self, slots: Tensor, lengths: Tensor, history: Tensor, budget: Tensor) -> Draft:
        """Draft for the slots int64 [G] of the coming step.

        Slot s has history[s, :lengths[g]] behind it (int64 [S, max_len]), and may spend budget[g] nodes at most.
        """
        ...

    def observe(self, outcome: Outcome) -> None:
        """See how the last drafts fared, a group each, in the order of the slots they were proposed for."""
        ...

    def reset(self, slot: int) -> None:
        """Forget a slot: its request has left."""
        ...
