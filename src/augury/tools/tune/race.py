"""A race between configurations (arms) on the same prompts; the slower half is dropped until the winner is clear.

Each rung runs the remaining arms on twice as many groups of prompts as the one before. An arm is dropped when it is
surely slower than the leader or, to limit the cost, when it is in the slower half of a rung. Decisions use intervals
widened for the number of comparisons in a race, so that checking after every rung does not make chance look certain;
an arm is reported with its own interval.
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

LEAST_GROUPS = 6  # of prompts in the first rung; an interval over fewer means nothing


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
        """Mean seconds per token in a group, over its runs."""
        return fmean(run.seconds / max(1, run.tokens) for run in self.runs[group])

    def weight(self, group: int) -> float:
        """Mean tokens of a group."""
        return fmean(max(1, run.tokens) for run in self.runs[group])

    def acceptance(self) -> tuple[float, float]:
        """The acceptance rate, and the acceptance length with the target's own token."""
        every = [run for runs in self.runs.values() for run in runs]
        drafts, drafted = sum(run.drafts for run in every), sum(run.drafted for run in every)
        accepted = sum(run.accepted for run in every)
        return (accepted / drafted if drafted else 0.0, 1 + accepted / drafts if drafts else 1.0)


class Race:
    """Keeps the lanes and decides; the caller supplies the timed runs."""

    def __init__(self, arms: Sequence[Arm], groups: int, confidence: float = 0.95, same: float = 0.03) -> None:
        """Set up the lanes; `groups` is the number of prompt groups, `same` the difference that does not matter."""
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
        """The fastest remaining arm; plain decoding if none remains."""
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
        """A rung: every remaining arm and plain decoding on each group, in an order that rotates by group."""
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
        """Whether every remaining arm is surely within `same` of the leader, or no other remains."""
        rest = [self.against(arm, self.leader, self.widened) for arm in self.left[1:]]
        return all(gap.low > 1 - self.same and gap.high < 1 + self.same for gap in rest)

    def speed_up(self, arm: Arm) -> Interval:
        """The speed relative to plain decoding."""
        return self.against(arm, PLAIN_ARM, self.confidence)

    def against(self, arm: Arm, other: Arm, confidence: float) -> Interval:
        """The speed relative to another arm, on the groups that both have run.

        Compared per token, because a rule that is not lossless may give longer answers; groups are weighted by tokens.
        """
        one, two = self.lanes[arm], self.lanes[other]
        both = [group for group in one.runs if group in two.runs]
        if arm == other or not both:
            return Interval(1.0, 1.0, 1.0)
        weights = [two.weight(g) for g in both]
        slow, fast = ([lane.cost(g) * w for g, w in zip(both, weights, strict=True)] for lane in (two, one))
        return ratio(slow, fast, confidence)


def size(arms: int) -> int:
    """The maximum number of runs in a race of so many arms, including plain decoding."""
    rungs, total = Race([Arm("", k + 1) for k in range(arms)], 1).rungs, 0
    for rung in range(rungs):
        total += (arms + 1) * LEAST_GROUPS * 2**rung
        arms = max(1, math.ceil(arms / 2))
    return total
