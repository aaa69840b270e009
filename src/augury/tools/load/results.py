"""The figures of one concurrency level, under the keys of `vllm bench serve`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from augury.tools.live.drafting import Drafting
from augury.tools.load.request import RequestResult
from augury.tools.load.scrape import spec_decode_keys

PERCENTILES = (50, 90, 95, 99)
# Lists with one value per request; they are saved so that a later run can be compared with this one.
DETAILS = ("prompts", "rounds", "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "errors")


@dataclass(slots=True)
class Level:
    """Everything measured at one concurrency on one server."""

    concurrency: int
    outcomes: list[RequestResult] = field(default_factory=list)
    seconds: float = 0.0
    counted: list[Drafting | None] = field(default_factory=list)

    @property
    def good(self) -> list[RequestResult]:
        """Requests that completed."""
        return [outcome for outcome in self.outcomes if outcome.ok]

    def failures(self) -> Counter[str]:
        """The number of failed requests by kind."""
        return Counter(outcome.kind for outcome in self.outcomes if not outcome.ok)

    def first_errors(self) -> dict[str, str]:
        """The first error message of each kind."""
        return {outcome.kind: outcome.error for outcome in reversed(self.outcomes) if not outcome.ok}


def as_result(level: Level, told: dict[str, Any]) -> dict[str, Any]:
    """One object as vLLM's bench writes it, followed by our own keys and the per-request lists."""
    good, seconds = level.good, level.seconds or float("nan")
    read, written = (sum(getattr(one, name) for one in good) for name in ("input_tokens", "output_tokens"))
    result = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        **told,
        "max_concurrency": level.concurrency,
        "duration": level.seconds,
        "completed": len(good),
        "failed": len(level.outcomes) - len(good),
        "total_input_tokens": read,
        "total_output_tokens": written,
        "request_throughput": len(good) / seconds,
        "request_goodput": None,
        "output_throughput": written / seconds,
        "total_token_throughput": (read + written) / seconds,
    }
    result |= _spread("ttft", [one.ttft for one in good])
    result |= _spread("tpot", [one.tpot for one in good if one.tpot is not None])
    result |= _spread("itl", [gap for one in good for gap in one.itl])
    result |= _spread("e2el", [one.latency for one in good])
    # If none of our requests succeeded, the server's counters are other clients' traffic.
    result |= spec_decode_keys(level.counted if good else [])
    result |= {
        "output_throughput_per_user": per_user(good),
        "tokens_counted_by": "server" if all(one.told for one in good) else "chunks",
        "errors_by_kind": dict(level.failures()),
        "first_errors": level.first_errors(),
    }
    return result | _details(level)


def _details(level: Level) -> dict[str, Any]:
    every = level.outcomes
    return {
        "prompts": [one.prompt for one in every],
        "rounds": [one.round for one in every],
        "input_lens": [one.input_tokens for one in every],
        "output_lens": [one.output_tokens if one.ok else 0 for one in every],
        "ttfts": [one.ttft for one in every],
        "itls": [one.itl for one in every],
        "latencies": [one.latency for one in every],
        "start_times": [one.start for one in every],
        "errors": [f"{one.kind}: {one.error}" if one.kind else "" for one in every],
    }


def per_user(good: list[RequestResult]) -> float:
    """Output tokens per second for one user, including the wait for the first token."""
    spent = sum(one.latency for one in good)
    return sum(one.output_tokens for one in good) / spent if spent else 0.0


def _spread(name: str, seconds: list[float]) -> dict[str, float | None]:
    """Mean, median, standard deviation and percentiles in milliseconds; None if nothing was measured."""
    if not seconds:
        names = ("mean", "median", "std", *(f"p{share}" for share in PERCENTILES))
        return {f"{which}_{name}_ms": None for which in names}
    values = np.array(seconds) * 1000
    found: dict[str, float | None] = {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
    }
    return found | {f"p{share}_{name}_ms": float(np.percentile(values, share)) for share in PERCENTILES}


def brief(result: dict[str, Any]) -> dict[str, Any]:
    """A result without the per-request lists."""
    return {key: value for key, value in result.items() if key not in DETAILS}
