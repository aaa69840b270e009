"""Estimate the speed-up of speculation from the steps that ran."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median

from augury.observe.steps import Step

ENOUGH = 8  # steps of a kind before their times count: the first ones of a size are slow
KEPT = 64  # latest step times that are kept
HOW = (
    "Estimated speed-up against plain decoding: tokens a request emits per drafted step, times the median time of a "
    f"plain step over that of a drafted step with as many requests; NaN until {ENOUGH} of both kinds have been seen"
)


@dataclass(slots=True)
class _Kind:
    steps: int = 0
    tokens: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, step: Step) -> None:
        self.steps += 1
        self.tokens += step.generation_tokens
        self.seconds.append(step.seconds)


class SpeedupEstimate:
    """Compares plain and drafted steps of the same number of requests; steps that read a prompt are left out."""

    def __init__(self) -> None:
        self._plain: dict[int, _Kind] = defaultdict(_Kind)
        self._drafted: dict[int, _Kind] = defaultdict(_Kind)

    def observe(self, step: Step) -> None:
        """Count one step."""
        if step.decoding_only and step.requests:
            (self._drafted if step.drafts else self._plain)[step.requests].add(step)

    def value(self) -> float:
        """The estimate, over the batch sizes seen often enough with and without drafts."""
        spent = plainly = 0.0
        for requests, drafted in list(self._drafted.items()):
            plain = self._plain.get(requests)
            if plain is not None and min(plain.steps, drafted.steps) >= ENOUGH:
                spent += drafted.steps * median(drafted.seconds)
                plainly += drafted.tokens / requests * median(plain.seconds)
        return plainly / spent if spent else float("nan")
