"""A method judged: the words of a verdict, and the line that carries it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from augury.tools.advise.candidates import Candidate
from augury.tools.advise.predict import At

USE, TRY, NOT, UNKNOWN = "use", "try", "do not", "not known"


@dataclass(frozen=True, slots=True)
class Line:
    """One method, judged."""

    candidate: Candidate
    verdict: str
    reason: str
    by_load: tuple[At, ...] = ()  # of the loads that fit
    config: dict[str, Any] | None = None  # ready for -sc
    memory_bytes: float = 0.0
    too_many: tuple[int, ...] = ()  # loads whose caches do not fit beside the weights and the drafter

    @property
    def worth(self) -> float:
        """Mean of the logarithm over the loads: what lines are ranked by."""
        return sum(math.log(at.decode.value) for at in self.by_load) / max(1, len(self.by_load))

    def as_record(self) -> dict[str, Any]:
        """For programs."""
        loads = [{**at.as_record(), "fits": True} for at in self.by_load]
        loads += [{"requests": requests, "fits": False} for requests in self.too_many]
        return {
            "method": self.candidate.method, "verdict": self.verdict, "reason": self.reason,
            "acceptance_source": self.candidate.source, "acceptance_is_yours": self.candidate.yours,
            "speculative_config": self.config, "drafter_memory_bytes": round(self.memory_bytes),
            "by_requests": sorted(loads, key=lambda one: int(one["requests"])), "notes": list(self.candidate.notes),
        }  # fmt: skip
