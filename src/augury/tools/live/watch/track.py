"""One server watched over minutes: its last readings, the verdict on them, and since when it is down."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from augury.tools.live.checks import Judged, judge
from augury.tools.live.expectation import expect
from augury.tools.live.reading import Reading
from augury.tools.live.session import Session
from augury.tools.live.window import Window, window
from augury.tools.shared.http import Unreadable

JUDGED_OVER = 60.0  # seconds: long enough for a verdict that does not flicker
KEPT = 240  # readings


@dataclass(frozen=True, slots=True)
class ModelTrack:
    """One model as a screen shows it."""

    judged: Judged  # over the last minute
    steps: list[Window]  # from reading to reading, oldest first


@dataclass(slots=True)
class State:
    """What is known about a server at one moment."""

    models: list[ModelTrack] = field(default_factory=list)
    error: Unreadable | None = None
    since: float | None = None  # time.time() when it went down, or came back
    started_anew: float | None = None  # time.time() when its counters fell
    reads: int = 0


class Track:
    """Reads a server repeatedly; its state may be read from another thread."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._trail: deque[dict[str, Reading]] = deque(maxlen=KEPT)
        self._state = State()
        self._lock = threading.Lock()

    @property
    def state(self) -> State:
        """The latest state; safe to read from any thread."""
        with self._lock:
            return self._state

    def step(self) -> State:
        """Read the server once and return the new state; a server that cannot be read becomes the state's error."""
        old = self._state
        try:
            reading = self.session.read()
        except Unreadable as error:
            since = old.since if old.error is not None else time.time()
            new = State(old.models, error, since, old.started_anew, old.reads)
        else:
            new = State([], None, time.time() if old.error else old.since, old.started_anew, old.reads + 1)
            if self._trail and self._anew(self._trail[-1], reading):
                self._trail.clear()
                new.started_anew = time.time()
            self._trail.append(reading)
            new.models = [self._seen(model) for model in reading]
        with self._lock:
            self._state = new
        return new

    @staticmethod
    def _anew(before: dict[str, Reading], after: dict[str, Reading]) -> bool:
        return any(window(before[model], after[model]).restarted for model in before.keys() & after.keys())

    def _seen(self, model: str) -> ModelTrack:
        trail = [readings[model] for readings in self._trail if model in readings]
        last, asked = trail[-1], self.session.asked
        first = next(reading for reading in trail if last.at - reading.at <= JUDGED_OVER)
        over = window(first if first is not last else None, last)
        judged = judge(over, expect(over, asked.method, asked.k, asked.rate, asked.config))
        return ModelTrack(judged, [window(a, b) for a, b in pairwise(trail)])

    def forever(self, interval: float, ended: threading.Event) -> None:
        """Read every `interval` seconds until `ended` is set."""
        while not ended.is_set():
            begun = time.monotonic()
            self.step()
            ended.wait(max(0.05, interval - (time.monotonic() - begun)))
