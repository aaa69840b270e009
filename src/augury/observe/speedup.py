"""How much faster speculation makes decoding, from the steps that were run anyway."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from augury.observe.steps import Step

HOW = (
    "Estimated speed-up against plain decoding: tokens a request emits per drafted step, times the mean time of a "
    "plain step over that of a drafted step with as many requests; NaN until both kinds of step have been seen"
)


@dataclass(slots=True)
class _Kind:
    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def add(self, step: Step) -> None:
        self.steps += 1
        self.seconds += step.seconds
        self.tokens += step.generation_tokens


class SpeedupEstimate:
    """Compares plain and drafted steps of the same number of requests; steps that read a prompt are left out."""

    def __init__(self) -> None:
        self._plain: dict[int, _Kind] = defaultdict(_Kind)
        self._drafted: dict[int, _Kind] = defaultdict(_Kind)

    def observe(self, step: Step) -> None:
        """Take one step."""
        if step.decoding_only and step.requests:
            (self._drafted if step.drafts else self._plain)[step.requests].add(step)

    @property
    def value(self) -> float:
        """The estimate, over the batch sizes seen with and without drafts."""
        both = [(requests, self._plain[requests], drafted) for requests, drafted in self._drafted.items()
                if requests in self._plain]  # fmt: skip
        spent = sum(drafted.seconds for _, _, drafted in both)
        if not spent:
            return float("nan")
        plainly = sum(drafted.tokens / requests * plain.seconds / plain.steps for requests, plain, drafted in both)
        return plainly / spent
