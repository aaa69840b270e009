"""A race between ways to run: each on the same prompts in turn, the slower half leaves, until it is clear who wins.

Each rung gives the arms that are left twice as many groups of prompts as the last one. An arm is out when it is surely
slower than the leader, or, to keep the price down, when it is in the slower half of a rung. What decides is held to
intervals widened for the number of comparisons that a race can make, so that looking after every rung does not make
chance look sure; what is shown of an arm is its own interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from augury.tools.tune.families import PLAIN_ARM, Arm
from augury.tools.tune.intervals import Interval, ratio

LEAST_GROUPS = 6  # of prompts in the first rung: an interval of fewer says nothing


class GroupRun(NamedTuple):
    """A group of prompts answered by one arm."""

    seconds: float
    tokens: int
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0


class RaceTurn(NamedTuple):
    """The arm and group to run next."""

    rung: int
    arm: Arm
    group: int


@dataclass(slots=True)
class Lane:
    """The measurements of one arm."""

    runs: dict[int, list[GroupRun]] = field(default_factory=lambda: defaultdict(list))  # by group of prompts
    out: str = ""  # why it left the race
    rung: int = 0  # the last it ran in

    def cost(self, group: int) -> float:
        """Seconds a token takes in a group, over its visits."""
        return fmean(run.seconds / max(1, run.tokens) for run in self.runs[group])

    def weight(self, group: int) -> float:
        """Tokens of a group."""
        return fmean(max(1, run.tokens) for run in self.runs[group])

    def acceptance(self) -> tuple[float, float]:
        """Share of drafted tokens that were accepted, and mean tokens a draft with the one that always comes."""
        every = [run for runs in self.runs.values() for run in runs]
        drafts, drafted = sum(run.drafts for run in every), sum(run.drafted for run in every)
        accepted = sum(run.accepted for run in every)
        return (accepted / drafted if drafted else 0.0, 1 + accepted / drafts if drafts else 1.0)


class Race:
    """Keeps the lanes and decides; the caller supplies the times."""

    def __init__(self, arms: Sequence[Arm], groups: int, confidence: float = 0.95, same: float = 0.03) -> None:
        """`groups` of prompts there are; arms within `same` of each other are as good as equal."""
        self.lanes: dict[Arm, Lane] = {PLAIN_ARM: Lane(), **{arm: Lane() for arm in arms}}
        self.groups, self.same = groups, same
        self.rungs = max(2, math.ceil(math.log2(max(2, len(arms)))) + 1)
        self.confidence = confidence
        self.widened = 1 - (1 - confidence) / (max(1, len(arms)) * self.rungs)
        self.sure = False

    @property
    def left(self) -> list[Arm]:
        """The arms still racing, fastest first once they have run."""
        left = [arm for arm, lane in self.lanes.items() if arm != PLAIN_ARM and not lane.out]
        return sorted(left, key=lambda arm: -self.speed_up(arm).value)

    @property
    def leader(self) -> Arm:
        """The fastest; plain decoding where nothing else is left."""
        return self.left[0] if self.left else PLAIN_ARM

    def run(self, answer: Callable[[RaceTurn], GroupRun], enough: Callable[[], bool] = lambda: False) -> None:
        """Race until it is decided or time is up; the first rung is always finished."""
        for rung in range(self.rungs):
            for turn in self._turns(rung):
                if rung and enough():
                    return
                ran, lane = answer(turn), self.lanes[turn.arm]
                lane.runs[turn.group % self.groups].append(ran)
                lane.rung = rung
            self._drop(rung)
            if self.decided():
                self.sure = True
                return

    def _turns(self, rung: int) -> Iterator[RaceTurn]:
        """A rung: every arm, plain decoding too, on each group; the order turns, so that no arm keeps a neighbour."""
        arms = [PLAIN_ARM, *self.left]
        many = LEAST_GROUPS * 2**rung
        first = many - LEAST_GROUPS
        for group in range(first, first + many):
            at = group % len(arms)
            for arm in arms[at:] + arms[:at]:
                yield RaceTurn(rung, arm, group)

    def _drop(self, rung: int) -> None:
        left = self.left
        keep = max(1, math.ceil(len(left) / 2))
        for place, arm in enumerate(left[1:], 1):
            gap = self.against(arm, left[0], self.widened)
            if gap.high < 1:
                self.lanes[arm].out = f"slower than {left[0].name}: {gap} times its speed"
            elif place >= keep and rung < self.rungs - 1:
                self.lanes[arm].out = f"in the slower half of rung {rung + 1} (not proved: {gap} of {left[0].name})"

    def decided(self) -> bool:
        """Whether no remaining arm differs from the leader by more than matters, or none remains."""
        rest = [self.against(arm, self.leader, self.widened) for arm in self.left[1:]]
        return all(gap.low > 1 - self.same and gap.high < 1 + self.same for gap in rest)

    def speed_up(self, arm: Arm) -> Interval:
        """How much faster than plain decoding."""
        return self.against(arm, PLAIN_ARM, self.confidence)

    def against(self, arm: Arm, other: Arm, confidence: float) -> Interval:
        """How much faster than another arm, on the groups that both have run.

        By the token, for a rule that is not lossless may answer longer; a group weighs as much as it has tokens.
        """
        one, two = self.lanes[arm], self.lanes[other]
        both = [group for group in one.runs if group in two.runs]
        if arm == other or not both:
            return Interval(1.0, 1.0, 1.0)
        weights = [two.weight(g) for g in both]
        slow, fast = ([lane.cost(g) * w for g, w in zip(both, weights, strict=True)] for lane in (two, one))
        return ratio(slow, fast, confidence)


def size(arms: int) -> int:
    """Runs that a race of so many arms takes at most, plain decoding with them."""
    rungs, total = Race([Arm("", k + 1) for k in range(arms)], 1).rungs, 0
    for rung in range(rungs):
        total += (arms + 1) * LEAST_GROUPS * 2**rung
        arms = max(1, math.ceil(arms / 2))
    return total
