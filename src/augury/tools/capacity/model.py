"""The closed form: latencies of a number of replicas by queueing formulas, without a simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from augury.tools.capacity.pace import Pace
from augury.tools.capacity.sessions import SessionShape


@dataclass(frozen=True, slots=True)
class Load:
    """The arriving requests, and the targets for their latency."""

    rate: float  # requests a second, all together
    think: float  # seconds between an answer and the next turn
    percentile: float  # 0 to 1
    ttft: float  # target seconds to the first token, for this share of requests
    tpot: float  # target seconds per token after it


@dataclass(frozen=True, slots=True)
class ModelledFigures:
    """The formulas' figures for one number of replicas."""

    ttft: float
    tpot: float
    running: float  # requests at a time on a replica

    def meets(self, load: Load) -> bool:
        """Whether both latencies meet their targets."""
        return self.ttft <= load.ttft and self.tpot <= load.tpot


NEVER = ModelledFigures(math.inf, math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class TraceMeans:
    """Means per request of a trace on a replica: seconds of prefill, their square, and decode steps."""

    read: float
    read_square: float
    read_high: float  # seconds of prefill at the target percentile
    steps: float


def work_of(sessions: list[SessionShape], pace: Pace, percentile: float) -> TraceMeans:
    """A trace's work if sessions find their earlier turns and shared beginnings in the cache, cold misses neglected."""
    reads = sorted(session.unread(n) * pace.read for session in sessions for n in range(len(session.turns)))
    steps = [(turn.answer - 1) / pace.tokens_per_step for session in sessions for turn in session.turns]
    high = reads[min(len(reads) - 1, int(percentile * len(reads)))]
    return TraceMeans(sum(reads) / len(reads), sum(r * r for r in reads) / len(reads), high, sum(steps) / len(steps))


def expected(work: TraceMeans, pace: Pace, load: Load, replicas: int) -> ModelledFigures:
    """The figures of so many replicas that share the load evenly.

    Prefill goes before decoding and queues as M/G/1; the rest of the time is for steps, which `b` requests share, where
    b is the number at which as many finish as arrive. The number of running requests is taken as Poisson.
    """
    each = load.rate / replicas
    reading = each * work.read
    if reading >= 1:
        return NEVER
    running = _running(work, pace, each, 1 - reading)
    if running is None:
        return NEVER
    z = NormalDist().inv_cdf(load.percentile)
    high = running + z * math.sqrt(max(running, 0.0))
    if high > pace.slots:
        return NEVER
    tpot = _step(pace, max(high, 1.0)) / pace.tokens_per_step / (1 - reading)
    wait = each * work.read_square / (2 * (1 - reading))
    # An M/G/1 queue is empty with probability 1 - rho; else its wait decays as an exponential with the same mean.
    tail = wait / reading * math.log(max(1.0, reading / (1 - load.percentile))) if reading else 0.0
    step = _step(pace, max(running, 1.0))
    ttft = tail + work.read_high + step / 2 + step
    return ModelledFigures(ttft, tpot, running)


def needed(work: TraceMeans, pace: Pace, load: Load, most: int) -> int | None:
    """The fewest replicas whose figures meet the targets; None if no number up to `most` does."""
    if not expected(work, pace, load, most).meets(load):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if expected(work, pace, load, middle).meets(load):
            high = middle
        else:
            low = middle
    return high


def _running(work: TraceMeans, pace: Pace, each: float, free: float) -> float | None:
    """Running requests by Little's law: arrival rate, times steps each, times step time; None if above the slots."""
    running = 0.0
    for _ in range(200):
        found = each * work.steps * _step(pace, max(running, 1.0)) / free
        if found > pace.slots:
            return None
        if abs(found - running) < 1e-6:
            break
        running = found
    return running


def _step(pace: Pace, requests: float) -> float:
    """Seconds of a step, interpolated linearly between whole numbers of requests."""
    low = min(int(requests), pace.slots)
    high = min(low + 1, pace.slots)
    return pace.step[low] + (pace.step[high] - pace.step[low]) * (min(requests, pace.slots) - low)
