"""How long a gate head is trained, and how deep it drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _quiet(loss: float) -> None:
    """Ignore the loss."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training settings that all gates have."""

    steps: int
    depth: int = 4  # guesses in a draft
    lessons: int = 4  # per step
    rate: float = 1e-3
    tick: Callable[[float], None] = _quiet  # sees the running loss after every step
