"""How long a gate head is trained, and how deep it drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _quiet(loss: float) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the trainers share."""

    steps: int
    depth: int = 4  # guesses in a draft
    lessons: int = 4  # in a step
    rate: float = 1e-3
    tick: Callable[[float], None] = _quiet  # sees the running loss after every step
