"""Scripted clocks for the race of `augury tune`, and the families that its tests choose from."""

from __future__ import annotations

import random
from collections.abc import Callable

from augury.tools.tune.families import Arm, ConfigFamily
from augury.tools.tune.race import GroupRun, RaceTurn

CHAIN = ConfigFamily("ngram", {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}, (2, 4, 8))
OTHER = ConfigFamily("suffix", {"method": "suffix"}, (4,))


def scripted(speeds: dict[Arm, float], noise: float = 0.02) -> Callable[[RaceTurn], GroupRun]:
    """A runner whose arms are as fast as told, on groups that differ, on a machine with noise."""
    dice = random.Random(3)

    def answer(turn: RaceTurn) -> GroupRun:
        weight = 1 + (turn.group % 5) / 5
        return GroupRun(weight / speeds.get(turn.arm, 1.0) * dice.gauss(1, noise), 100, 10, 40, 20)

    return answer
