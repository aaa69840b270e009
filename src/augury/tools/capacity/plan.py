"""The fewest replicas that meet the targets: the closed form says where to look, simulations decide."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from augury.tools.capacity.model import Load, ModelledFigures, expected, needed, work_of
from augury.tools.capacity.pace import Pace
from augury.tools.capacity.sessions import SessionShape
from augury.tools.capacity.simulate import Simulation, SimulationResult

MOST = 1000  # replicas
PART = 48  # replicas: larger fleets are searched at this scale first, with a part of the load, then whole
STRIDE = 1.12  # factor from one number of replicas to the next, until a good and a bad one are known
FINER = 1.02  # the same for whole fleets
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The result of the search."""

    load: Load
    pace: Pace
    by_model: int | None  # replicas by the closed form
    expected: ModelledFigures  # its figures for the number that simulations found
    tried: list[SimulationResult]  # whole fleets, by number of replicas
    best: SimulationResult | None
    spread: SimulationResult | None  # as many replicas, each request routed to the least loaded

    @property
    def replicas(self) -> int | None:
        """The fewest replicas that meet the targets; None if no number does."""
        return self.best.replicas if self.best else None


class Planner:
    """Simulations of one load; each whole fleet is simulated once."""

    def __init__(self, sessions: list[SessionShape], pace: Pace, load: Load, say: Say) -> None:
        self.sessions, self.pace, self.load, self.say = sessions, pace, load, say
        self.work = work_of(sessions, pace, load.percentile)
        self.found: dict[int, SimulationResult] = {}

    def simulated(self, replicas: int, part: float = 1.0, sticky: bool = True) -> SimulationResult:
        """Simulate so many replicas under the load, or under a `part` of it."""
        load = replace(self.load, rate=self.load.rate * part)
        running = expected(self.work, self.pace, load, replicas).running
        each = load.rate / replicas
        longest = self.work.steps * self.pace.step[-1] + self.work.read  # of a full replica
        self.say(f"simulating {replicas} replicas{'' if sticky else ', not sticky'}")
        answering = min(running / each, longest)
        return Simulation(self.sessions, self.pace, load, replicas, sticky).run(answering)

    def good(self, replicas: int) -> bool:
        """Whether a whole fleet of so many replicas meets the targets."""
        if replicas not in self.found:
            self.found[replicas] = self.simulated(replicas)
        return self.found[replicas].meets(self.load)

    def start(self, guess: int, most: int) -> int:
        """Where to start with whole fleets: at the guess, or where a search at the scale of PART leads."""
        if guess <= PART:
            return guess
        part = PART / guess
        small = search(PART, max(PART, round(most * part)), lambda n: self.simulated(n, part).meets(self.load))
        return min(most, math.ceil((small or PART) / part))


def plan(sessions: list[SessionShape], pace: Pace, load: Load, most: int = MOST, say: Say = print) -> CapacityPlan:
    """Search for the fewest replicas; `say` is told of every simulation before it runs."""
    planner = Planner(sessions, pace, load, say)
    guess = needed(planner.work, pace, load, most)
    start = planner.start(guess or most, most)
    fewest = search(start, most, planner.good, FINER if start > PART else STRIDE)
    found = planner.found
    best = found[fewest] if fewest else None
    shown = expected(planner.work, pace, load, fewest or most)
    spread = planner.simulated(fewest, sticky=False) if fewest else None
    return CapacityPlan(load, pace, guess, shown, [found[n] for n in sorted(found)], best, spread)


def search(start: int, most: int, good: Callable[[int], bool], stride: float = STRIDE) -> int | None:
    """The fewest from 1 to `most` that are good, if more are never worse; None if none is; fast near `start`.

    A number within a fortieth of the fewest is accepted, since simulations cannot tell them apart.
    """
    low, high = 0, most + 1  # not good, and good as far as is known
    at = min(max(start, 1), most)
    while high > most or high - low > max(1, low // 40):
        if good(at):
            high = at
        else:
            low = at
        if high > most:  # none was good so far
            at = min(most, max(at + 1, math.ceil(at * stride)))
            if low >= most:
                return None
        elif low == 0 and high > 1:
            at = max(1, min(high - 1, math.floor(high / stride)))
        else:
            at = (low + high) // 2
    return high
