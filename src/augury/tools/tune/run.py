"""The stages of a tuning: a race at every load, then the winner against plain decoding on held-out prompts."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from augury.tools.tune.choose import Recommendation
from augury.tools.tune.families import Arm, ConfigFamily
from augury.tools.tune.intervals import Interval, ratio
from augury.tools.tune.race import LEAST_GROUPS, GroupRun, Race, RaceTurn, size

HELD_OUT = 4  # one prompt in this many is held out for the final comparison
LEAST_HELD_OUT = 3
PAIRS = 6  # minimum final runs of the winner against plain decoding, at each load


class ArmRunner(Protocol):
    """Answers groups of prompts, given by number, with an arm's configuration."""

    def answer(self, arm: Arm, group: Sequence[int]) -> GroupRun:
        """Answer a group and time it."""
        ...


@dataclass(frozen=True, slots=True)
class TunePlan:
    """The checked options of the command line."""

    loads: list[int]
    minutes: float
    confidence: float
    params: dict[str, Any]
    racing: list[int]  # prompts by number
    held_out: list[int]


def race_all(plan: TunePlan, families: Sequence[ConfigFamily], runner: ArmRunner) -> tuple[dict[int, Race], bool]:
    """Run a race at every load; returns the races and whether Ctrl-C stopped them, which keeps the runs so far."""
    races: dict[int, Race] = {}
    arms = [arm for family in families for arm in family.arms]
    for load in plan.loads:
        groups = groups_of(plan.racing, load)
        races[load] = Race(arms, len(groups), plan.confidence)
        try:
            race_at(load, plan, races[load], groups, runner)
        except KeyboardInterrupt:
            return races, True
    return races, False


def race_at(load: int, plan: TunePlan, race: Race, groups: Sequence[Sequence[int]], runner: ArmRunner) -> None:
    """Run one race with `load` concurrent requests."""
    from augury.tools.shared.progress import progress

    until = time.monotonic() + plan.minutes * 60 / len(plan.loads)
    with progress("racing", size(len(race.lanes) - 1)) as tick:

        def answer(turn: RaceTurn) -> GroupRun:
            tick(f"{load} at once, rung {turn.rung + 1}: {len(race.left)} left, {turn.arm.name}")
            return runner.answer(turn.arm, groups[turn.group % len(groups)])

        race.run(answer, lambda: time.monotonic() > until)


def groups_of(numbers: Sequence[int], load: int) -> list[list[int]]:
    """Groups of `load` prompts, which overlap if there are too few prompts for the minimum number of groups."""
    many = max(LEAST_GROUPS, len(numbers) // load)
    step = load if many * load <= len(numbers) else max(1, len(numbers) // many)
    return [[numbers[(group * step + i) % len(numbers)] for i in range(load)] for group in range(many)]


def confirm(choice: Recommendation, plan: TunePlan, runner: Any) -> dict[int, Interval]:
    """Time the chosen configuration against plain decoding on the held-out prompts; returns the speed-up by load."""
    from augury.tools.shared.progress import progress

    if choice.speculative is None:
        return {}
    found: dict[int, Interval] = {}
    with progress("the winner on held-out prompts", len(plan.loads) * PAIRS) as tick:
        for load in plan.loads:
            groups = groups_of(plan.held_out, load)
            costs: dict[int, list[tuple[float, float]]] = {}
            for pair in range(max(PAIRS, len(groups))):
                tick(f"the winner on held-out prompts, {load} at once")
                at, both = pair % len(groups), [None, choice.speculative]
                spent = {i: runner.answer_with(both[i], groups[at]) for i in ((0, 1) if pair % 2 else (1, 0))}
                costs.setdefault(at, []).append((spent[0].seconds, spent[1].seconds))
            sums = [[sum(pair[i] for pair in pairs) / len(pairs) for pairs in costs.values()] for i in (0, 1)]
            found[load] = ratio(sums[0], sums[1], plan.confidence)
    return found


def split(count: int) -> tuple[list[int], list[int]]:
    """Shuffled prompt numbers to race on and to hold out; if there are few prompts, all of them serve both purposes."""
    numbers = list(range(count))
    random.Random(0).shuffle(numbers)
    kept = count // HELD_OUT
    return (numbers, numbers) if kept < LEAST_HELD_OUT else (numbers[kept:], numbers[:kept])
