"""A fleet under a trace's load, event by event; requests are routed by the class that routes live ones."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field

import numpy as np

from augury.scale.prefix import MOST, Prefix
from augury.scale.router import Router
from augury.tools.capacity.model import Load
from augury.tools.capacity.pace import Pace
from augury.tools.capacity.replica_model import ReplicaModel, RequestUnderWay
from augury.tools.capacity.sessions import SessionShape

ROUTED = 64  # tokens per block that the router hashes: 256 bytes of text
SEED = 20
SETTLE, COUNT, GRACE = 3.0, 5.0, 5.0  # in request durations: before counting, counting, for counted ones to end
FEWEST = 4000  # requests counted at least
PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What a simulation measured, after the fleet had settled."""

    replicas: int
    sticky: bool
    requests: int
    ttft: dict[int, float]  # seconds, by percentile
    tpot: dict[int, float]
    asked_ttft: float  # at the target percentile
    asked_tpot: float
    hits: float  # share of prompt tokens found in a cache
    held: float  # share of later turns routed to the replica that has their session
    reading: float  # share of time that replicas read prompts
    running: float  # requests at a time on a replica, mean
    uneven: float  # the busiest replica's requests over the mean

    def meets(self, load: Load) -> bool:
        """Whether both latencies meet their targets."""
        return self.asked_ttft <= load.ttft and self.asked_tpot <= load.tpot


@dataclass
class Simulation:
    """One run of a fleet under a load."""

    sessions: list[SessionShape]
    pace: Pace
    load: Load
    replicas: int
    sticky: bool = True
    router: Router = field(default_factory=Router)

    def __post_init__(self) -> None:
        names = [f"replica {n}" for n in range(self.replicas)]
        self._models = {name: ReplicaModel(self.pace) for name in names}
        self._loads = dict.fromkeys(names, 0)
        self._chance = random.Random(SEED)
        self._events: list[tuple[float, int, str | RequestUnderWay, int]] = []
        self._serial = self._instances = 0
        self._from = self._to = 0.0  # requests that arrive between them are counted
        self._counted: list[RequestUnderWay] = []
        self._open = 0  # of the counted, those without an end
        self._came: dict[int, str] = {}  # where each session's latest turn went
        self._turns = self._stayed = 0

    def run(self, answering: float) -> SimulationResult:
        """Simulate, counting the requests that arrive once the fleet has settled; `answering`: seconds of a request."""
        self._warm(answering)
        self._next_session(0.0)
        self._from = SETTLE * answering
        self._to = self._from + max(COUNT * answering, FEWEST / self.load.rate)
        end = self._to + GRACE * (answering + self.load.ttft)
        while self._events and (self._events[0][0] < self._to or self._open):
            now, _, what, version = heapq.heappop(self._events)
            if now > end:  # the queue grows without bound; what has not finished counts as infinite
                break
            if isinstance(what, RequestUnderWay):
                self._arrive(what, now, new=version == 1)
            elif self._models[what].version == version:
                for ended in self._models[what].advance(now):
                    self._finish(ended, now)
                self._reschedule(what)
        return self._outcome(min(now, end))

    # --- arrivals -----------------------------------------------------------------------------------------------------

    @property
    def _session_rate(self) -> float:
        return self.load.rate * len(self.sessions) / sum(len(session.turns) for session in self.sessions)

    def _next_session(self, now: float) -> None:
        at = now + self._chance.expovariate(self._session_rate)
        self._instances += 1
        session = self._chance.choice(self.sessions)
        self._push(at, RequestUnderWay(session, self._instances, 0, at, prompt=session.turns[0].prompt), 1)

    def _warm(self, answering: float) -> None:
        """Start in a steady state: the usual number of sessions, each at some turn, its earlier turns in a cache."""
        turn = self.load.think + answering
        spots = [(session, number) for session in self.sessions for number in range(len(session.turns))]
        for _ in range(round(self.load.rate * turn)):  # Little's law; sessions of many turns are drawn more often
            session, number = self._chance.choice(spots)
            self._instances += 1
            asked = RequestUnderWay(session, self._instances, number, 0.0, prompt=session.turns[number].prompt)
            if number:
                before = RequestUnderWay(
                    session, self._instances, number - 1, 0.0, prompt=session.turns[number - 1].prompt
                )
                name = self._route(before)
                self._models[name].cache.keep(before, sum(session.turns[number - 1]))
                self._came[self._instances] = name
            asked.arrived = self._chance.uniform(0.0, turn)
            self._push(asked.arrived, asked, 0)

    def _arrive(self, asked: RequestUnderWay, now: float, new: bool) -> None:
        if new:
            self._next_session(now)
        asked.replica = self._route(asked)
        if asked.number and now >= self._from:
            self._turns += 1
            self._stayed += self._came.get(asked.instance) == asked.replica
        self._came[asked.instance] = asked.replica
        self._loads[asked.replica] += 1
        if self._from <= now < self._to:
            self._counted.append(asked)
            self._open += 1
        model = self._models[asked.replica]
        model.advance(now)  # nothing ends here: its event would have come earlier in the queue
        model.take(asked, now)
        self._reschedule(asked.replica)

    def _finish(self, asked: RequestUnderWay, now: float) -> None:
        self._loads[asked.replica] -= 1
        self._open -= self._from <= asked.arrived < self._to
        number = asked.number + 1
        if number < len(asked.session.turns):
            at = now + self._chance.expovariate(1 / self.load.think) if self.load.think else now
            prompt = asked.session.turns[number].prompt
            self._push(at, RequestUnderWay(asked.session, asked.instance, number, at, prompt=prompt), 0)
        else:
            self._came.pop(asked.instance, None)

    def _route(self, asked: RequestUnderWay) -> str:
        return self.router.choose(self._prefix(asked) if self.sticky else None, self._loads).replica

    def _prefix(self, asked: RequestUnderWay) -> Prefix:
        """The prefix as ingress.py would see it: the shared beginning, then the session's own blocks."""
        session, name = asked.session, asked.instance.to_bytes(8, "little")
        common, whole = session.head // ROUTED, min(asked.prompt // ROUTED, MOST)
        blocks = [session.beginning + bytes((n & 255, n >> 8)) for n in range(min(common, whole))]
        blocks += [name + n.to_bytes(4, "little") for n in range(common, whole)]
        return Prefix(name, tuple(blocks))

    # --- the queue ----------------------------------------------------------------------------------------------------

    def _push(self, at: float, what: str | RequestUnderWay, version: int) -> None:
        self._serial += 1
        heapq.heappush(self._events, (at, self._serial, what, version))

    def _reschedule(self, name: str) -> None:
        model = self._models[name]
        model.version += 1
        if (at := model.next()) is not None:
            self._push(at, name, model.version)

    # --- figures ------------------------------------------------------------------------------------------------------

    def _outcome(self, now: float) -> SimulationResult:
        kept = self._counted
        ttft = np.array([asked.first - asked.arrived if asked.first else math.inf for asked in kept])
        tpot = np.array([_each(asked) for asked in kept if asked.session.turns[asked.number].answer > 1] or [0.0])
        counts = np.bincount([int(asked.replica.split()[1]) for asked in kept], minlength=self.replicas)
        at_work = sum((asked.ended or now) - asked.arrived for asked in kept)
        asked_for = 100 * self.load.percentile
        return SimulationResult(
            self.replicas,
            self.sticky,
            len(kept),
            {q: _percentile(ttft, q) for q in PERCENTILES},
            {q: _percentile(tpot, q) for q in PERCENTILES},
            _percentile(ttft, asked_for),
            _percentile(tpot, asked_for),
            sum(asked.found for asked in kept) / sum(asked.prompt for asked in kept),
            self._stayed / max(1, self._turns),
            sum(model.read_seconds for model in self._models.values()) / now / self.replicas,
            at_work / (self._to - self._from) / self.replicas,
            float(counts.max() / max(counts.mean(), 1e-9)),
        )


def _each(asked: RequestUnderWay) -> float:
    """Seconds per token after the first; infinite if the request has not ended."""
    return (asked.ended - asked.first) / (asked.session.turns[asked.number].answer - 1) if asked.ended else math.inf


def _percentile(values: np.ndarray, percent: float) -> float:
    return float(np.percentile(values, percent, method="higher"))  # an observed value: interpolation may give NaN
