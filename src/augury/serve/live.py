"""The last five minutes in one-second buckets, for the page."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from augury.observe.steps import Step

SECONDS = 300


@dataclass(slots=True)
class Bucket:
    """One second."""

    at: int  # Unix time
    tokens: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    k: int = 0  # most a request might draft
    running: int = 0
    waiting: int = 0

    def shown(self) -> dict[str, Any]:
        """The bucket as JSON, with its two ratios; null where nothing was drafted."""
        rate = self.accepted / self.drafted if self.drafted else None
        length = 1 + self.accepted / self.drafts if self.drafts else None
        return {**asdict(self), "acceptance_rate": rate, "mean_acceptance_length": length}


class Live:
    """Collects steps; seconds without a step are filled in when the page is read."""

    def __init__(self, k: int) -> None:
        self.started = time.time()
        self.accepted_per_pos = [0] * k
        self.drafted_per_pos = [0] * k
        self.totals = {"tokens": 0, "prompt_tokens": 0, "drafts": 0, "drafted": 0, "accepted": 0, "steps": 0}
        self._k = k
        self._load = (0, 0)
        self._buckets: deque[Bucket] = deque(maxlen=SECONDS)

    def load(self, running: int, waiting: int) -> None:
        """How full the engine is now."""
        self._load = (running, waiting)
        now = self._now()
        now.running, now.waiting = max(now.running, running), max(now.waiting, waiting)

    def step(self, step: Step) -> None:
        """Take one step."""
        now, totals = self._now(), self.totals
        now.k = self._k = step.budget if self.accepted_per_pos else 0
        now.tokens += step.generation_tokens
        totals["tokens"] += step.generation_tokens
        totals["prompt_tokens"] += step.prompt_rows
        totals["steps"] += 1
        for nodes, accepted, depth in step.drafts:
            now.drafts += 1
            now.drafted += nodes
            now.accepted += accepted
            for position in range(min(depth, len(self.drafted_per_pos))):
                self.drafted_per_pos[position] += 1
                self.accepted_per_pos[position] += position < accepted
            totals["drafts"] += 1
            totals["drafted"] += nodes
            totals["accepted"] += accepted

    def shown(self) -> dict[str, Any]:
        """Everything, as JSON."""
        self._now()
        return {
            "uptime": round(time.time() - self.started, 1),
            "buckets": [bucket.shown() for bucket in self._buckets],
            "totals": dict(self.totals),
            "per_position": {"drafted": list(self.drafted_per_pos), "accepted": list(self.accepted_per_pos)},
        }

    def _now(self) -> Bucket:
        """The bucket of this second; seconds that have passed without one get empty buckets."""
        second = int(time.time())
        last = self._buckets[-1].at if self._buckets else second - 1
        for at in range(max(last, second - SECONDS) + 1, second + 1):
            self._buckets.append(Bucket(at, k=self._k, running=self._load[0], waiting=self._load[1]))
        return self._buckets[-1]
