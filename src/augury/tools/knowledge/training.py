"""The acceptance that training has reached so far, and what a head of each kind consists of."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

FILE = Path(__file__).parent / "training.yaml"
SETS = ("mt_bench", "humaneval", "gsm8k_test")


class _Written(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainedMethod(_Written):
    """One kind of drafter; see the file's head for what each field means."""

    method: str
    k: int = Field(ge=1)
    words: int = Field(ge=0)
    layers: int | Literal["asked"]
    wide: int
    unrolled: bool
    curve: dict[int, tuple[float, ...]]

    def lengths(self, steps: float) -> dict[str, float]:
        """Acceptance lengths per set after so many steps of 64 texts: interpolated, or the last one beyond the curve.

        A set has none before its first measured step, because so little training was not measured.
        """
        found = {}
        for i, name in enumerate(SETS):
            points = sorted((step, values[i]) for step, values in self.curve.items() if len(values) > i)
            if points and steps >= points[0][0]:
                found[name] = _between(points, steps)
        return found


class TrainingFacts(_Written):
    """The whole file."""

    tokens_a_text: int
    answers_a_step: int
    host_step_ms: float
    arithmetic: dict[Literal["slow", "fast"], float]
    methods: tuple[TrainedMethod, ...]


@cache
def training_facts() -> TrainingFacts:
    """The contents of training.yaml."""
    return TrainingFacts(**yaml.safe_load(FILE.read_text(encoding="utf-8")))


def _between(points: list[tuple[int, float]], steps: float) -> float:
    """Interpolate in the logarithm of the steps."""
    for (low, before), (high, after) in pairwise(points):
        if steps <= high:
            return before + (after - before) * log(steps / low) / log(high / low)
    return points[-1][1]
