"""One simulated replica: prefills one prompt after another, decodes the rest as a batch, and caches what it reads."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass

from augury.tools.capacity.pace import Pace
from augury.tools.capacity.sessions import BLOCK, SessionShape


@dataclass(slots=True)
class RequestUnderWay:
    """A request in the simulation."""

    session: SessionShape
    instance: int  # which copy of the session
    number: int  # of the turn
    arrived: float
    replica: str = ""
    first: float = 0.0  # when its first token came
    ended: float = 0.0
    found: int = 0  # tokens of its prompt in the cache
    prompt: int = 0


@dataclass(slots=True)
class PrefillJob:
    """A prompt, and the seconds left of its prefill."""

    asked: RequestUnderWay
    left: float


class Cache:
    """A replica's prefix cache: whole sessions and shared beginnings, the least recently used evicted first."""

    def __init__(self, room: int) -> None:
        self._room, self._used = room, 0
        self._held: OrderedDict[bytes | int, int] = OrderedDict()

    def find(self, asked: RequestUnderWay) -> int:
        """Tokens of a request's prompt that are cached, in whole blocks."""
        session, head = asked.session, 0
        if session.head and session.beginning in self._held:
            self._held.move_to_end(session.beginning)
            head = session.head
        own = self._held.get(asked.instance, 0) if head or not session.head else 0
        return min(head + own, asked.prompt - 1) // BLOCK * BLOCK

    def keep(self, asked: RequestUnderWay, tokens: int) -> None:
        """Cache the first `tokens` tokens of a session."""
        session = asked.session
        if session.head:
            self._put(session.beginning, session.head)
        self._put(asked.instance, max(0, tokens - session.head))

    def _put(self, name: bytes | int, tokens: int) -> None:
        self._used += tokens - self._held.pop(name, 0)
        self._held[name] = tokens
        while self._used > self._room and len(self._held) > 1:
            self._used -= self._held.popitem(last=False)[1]


class ReplicaModel:
    """A replica's event clock; steps are counted, not simulated: between two events their length does not change."""

    def __init__(self, pace: Pace) -> None:
        self.pace, self.cache = pace, Cache(pace.cache_tokens)
        self.now, self.read_seconds = 0.0, 0.0
        self.version = 0  # of its next event: an older one in the queue is void
        self._steps = 0.0  # done so far
        self._running: list[tuple[float, int, RequestUnderWay]] = []  # by the step at which each ends
        self._reading: deque[PrefillJob] = deque()
        self._waiting: deque[RequestUnderWay] = deque()
        self._serial = 0

    def take(self, asked: RequestUnderWay, now: float) -> None:
        """Start a request that arrives, or let it wait if all slots are taken."""
        self.now = now
        if len(self._running) + len(self._reading) < self.pace.slots:
            self._begin(asked)
        else:
            self._waiting.append(asked)

    def _begin(self, asked: RequestUnderWay) -> None:
        asked.found = self.cache.find(asked)
        self.cache.keep(asked, asked.prompt)
        self._reading.append(PrefillJob(asked, (asked.prompt - asked.found) * self.pace.read))

    def next(self) -> float | None:
        """The time of the next event if no request arrives; None if the replica is idle."""
        if self._reading:
            return self.now + self._reading[0].left
        if self._running:
            return self.now + (self._running[0][0] - self._steps) * self.pace.step[len(self._running)]
        return None

    def advance(self, to: float) -> list[RequestUnderWay]:
        """Advance to a time not past the next event; returns the requests that end then."""
        spent, ended = to - self.now, []
        if self._reading:
            self.read_seconds += spent
            head = self._reading[0]
            head.left -= spent
            if head.left <= 1e-12:
                self._read(self._reading.popleft().asked, to)
        elif self._running:
            self._steps += spent / self.pace.step[len(self._running)]
            while self._running and self._running[0][0] <= self._steps + 1e-9:
                ended.append(self._end(heapq.heappop(self._running)[2], to))
        self.now = to
        return ended

    def _read(self, asked: RequestUnderWay, now: float) -> None:
        """Move a request to decoding; its first token comes with the next step, the current one being half done."""
        rest = (asked.session.turns[asked.number].answer - 1) / self.pace.tokens_per_step
        self._serial += 1
        heapq.heappush(self._running, (self._steps + 1 + rest, self._serial, asked))
        requests = len(self._running)
        asked.first = now + self.pace.step[requests] * (1.5 if requests > 1 else 1.0)

    def _end(self, asked: RequestUnderWay, now: float) -> RequestUnderWay:
        asked.ended = max(now, asked.first)
        self.cache.keep(asked, sum(asked.session.turns[asked.number]))
        if self._waiting:
            self._begin(self._waiting.popleft())
        return asked
