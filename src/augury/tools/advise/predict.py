"""Tokens per step over the cost of the step: the speed-up over plain decoding, with its interval."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from augury.tools.advise.accept import SAMPLES, SEED, AcceptanceSource, StepSamples
from augury.tools.advise.cost import Cost
from augury.tools.advise.drafters import DraftingCost
from augury.tools.advise.traffic import Traffic

# Gauss-Hermite nodes and weights: the mean cost of a step when the rows of its requests vary.
PLACES = np.array([-2.856970, -1.355626, 0.0, 1.355626, 2.856970])
SHARES = np.array([0.011257, 0.222076, 0.533333, 0.222076, 0.011257])
SAME = 0.02  # a K that gains less than this over another is not worth a range of its own
EACH = 520  # sizes up to here are tried one by one; past 512 plain steps are beyond the captured graphs too


class Speedup(NamedTuple):
    """Times as fast as plain decoding: best estimate and the interval that holds it nine times in ten."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class At:
    """The prediction for one method with one K at one number of concurrent requests."""

    requests: int
    tokens: int  # K
    decode: Speedup
    whole: Speedup  # prefill included
    step_ms: float  # drafting included
    plain_ms: float
    tokens_per_step: float

    def as_record(self) -> dict[str, Any]:
        """The prediction as a JSON object."""
        return {
            "requests": self.requests,
            "num_speculative_tokens": self.tokens,
            "speedup": round(self.decode.value, 4),
            "low": round(self.decode.low, 4),
            "high": round(self.decode.high, 4),
            "end_to_end": {name: round(value, 4) for name, value in self.whole._asdict().items()},
            "step_ms": round(self.step_ms, 4),
            "plain_step_ms": round(self.plain_ms, 4),
            "tokens_per_step": round(self.tokens_per_step, 4),
        }


@dataclass
class Predictor:
    """Speed-ups under one cost model and one kind of traffic."""

    cost: Cost
    traffic: Traffic
    _steps: dict[tuple[int, float], float] = field(default_factory=dict)

    def step_ms(self, requests: int, rows_per_request: float) -> float:
        """Milliseconds of a step at the traffic's context, cached."""
        key = requests, round(rows_per_request, 6)
        if key not in self._steps:
            self._steps[key] = self.cost.step_ms(requests, rows_per_request, self.traffic.context)
        return self._steps[key]

    def decoding_share(self, requests: int) -> float:
        """How much of a request's time plain decoding takes; the rest is prefill."""
        read = self.cost.read_ms(self.traffic.prompt_tokens * (1 - self.traffic.cached))
        decode = max(0.0, self.traffic.answer_tokens - 1) * self.step_ms(requests, 1) / requests
        return decode / (read + decode) if decode else 0.0

    def at(self, acceptance: AcceptanceSource, drafting: DraftingCost, requests: int, tokens: int) -> At:
        """The prediction for one method with one K at one load."""
        plain = self.step_ms(requests, 1)
        if tokens == 0:
            one = Speedup(1.0, 1.0, 1.0)
            return At(requests, 0, one, one, plain, plain, 1.0)
        draws = acceptance.at(tokens)
        steps = self._mean_step(draws, requests, tokens)
        steps[0] = self._expected_step(draws.nodes[0], requests, tokens)
        steps = steps + self.cost.draft_ms(drafting, requests, tokens, self.traffic.context)
        times = draws.tokens * plain / steps
        doubt = self.cost.spread(requests, 1 + tokens, self.traffic.context)
        random = np.random.default_rng(SEED + 1)
        noise = doubt * random.standard_normal(SAMPLES) - self.cost.leans * random.uniform(0, 1, SAMPLES)
        times[1:] *= np.exp(noise)
        share = self.decoding_share(requests)
        decode, whole = summed(times), summed(1 / (1 - share + share / times))
        return At(requests, tokens, decode, whole, float(steps[0]), plain, float(draws.tokens[0]))

    def best(self, acceptance: AcceptanceSource, drafting: DraftingCost, requests: int) -> At:
        """The prediction at the K with the highest expected speed; plain decoding (K = 0) takes part and wins ties."""
        tried = [self.at(acceptance, drafting, requests, tokens) for tokens in (0, *acceptance.lengths)]
        return max(tried, key=lambda at: (at.decode.value, -at.tokens))

    def schedule(self, acceptance: AcceptanceSource, drafting: DraftingCost, most: int) -> list[tuple[int, int, int]]:
        """As few batch-size ranges (first, last, K) as possible, each K best, or nearly, at every size in its range."""
        sizes = batch_sizes(most)
        lengths = sorted((0, *acceptance.lengths))
        columns = [self._speeds(acceptance, drafting, sizes, tokens) for tokens in lengths]
        speeds = np.array(columns).T  # a row per size
        fine = speeds >= np.maximum(speeds.max(1, keepdims=True) * (1 - SAME), 1.0)
        found: list[tuple[int, int, int]] = []
        at = 0
        while at < len(sizes):
            # The K that stays good longest; among equals the faster over that stretch.
            ends = at + np.where(fine[at:].all(0), len(sizes) - at, (~fine[at:]).argmax(0))
            end = int(ends.max())
            means = np.where(ends == end, speeds[at:end].mean(0), 0.0)
            found.append((sizes[at], sizes[end] - 1 if end < len(sizes) else most, lengths[int(means.argmax())]))
            at = end
        return found

    def speed(self, acceptance: AcceptanceSource, drafting: DraftingCost, requests: int, tokens: int) -> float:
        """The expected speed-up of `at`, without its interval."""
        return self._speeds(acceptance, drafting, [requests], tokens)[0]

    def _speeds(
        self, acceptance: AcceptanceSource, drafting: DraftingCost, sizes: list[int], tokens: int
    ) -> list[float]:
        if tokens == 0:
            return [1.0] * len(sizes)
        draws = acceptance.at(tokens)  # drawing is slow, so once for all sizes
        found = []
        for requests in sizes:
            step = self._expected_step(draws.nodes[0], requests, tokens)
            step += self.cost.draft_ms(drafting, requests, tokens, self.traffic.context)
            found.append(float(draws.tokens[0]) * self.step_ms(requests, 1) / step)
        return found

    def _expected_step(self, shares: np.ndarray, requests: int, tokens: int) -> float:
        """Milliseconds of the best estimate's step, without interpolation, which would blur cliffs."""
        nodes = np.arange(tokens + 1)
        if requests == 1:
            return float(sum(share * self.step_ms(1, 1 + n) for n, share in enumerate(shares.tolist()) if share))
        mean = float(shares @ nodes)
        deviation = float(np.sqrt(max(float(shares @ nodes**2) - mean**2, 0.0) / requests))
        if deviation < 1e-9:
            return self.step_ms(requests, 1 + mean)
        rows = np.clip(1 + mean + PLACES * deviation, 1, 1 + tokens)
        return float(sum(w * self.step_ms(requests, r) for w, r in zip(SHARES.tolist(), rows.tolist(), strict=True)))

    def _mean_step(self, draws: StepSamples, requests: int, tokens: int) -> np.ndarray:
        """Milliseconds of the mean step for each row of the draws."""
        nodes = np.arange(tokens + 1)
        if requests == 1:
            return np.asarray(draws.nodes @ np.array([self.step_ms(1, 1 + n) for n in nodes.tolist()]))
        mean = draws.nodes @ nodes
        variance = np.maximum(draws.nodes @ nodes**2 - mean**2, 0)
        rows = 1 + mean[:, None] + PLACES * np.sqrt(variance / requests)[:, None]
        stops = np.unique(np.linspace(requests, requests * (1 + tokens), min(96, requests * tokens + 1)).astype(int))
        known = np.array([self.step_ms(requests, total / requests) for total in stops.tolist()])
        return np.asarray(np.interp(np.clip(rows, 1, 1 + tokens), stops / requests, known) @ SHARES)


def batch_sizes(most: int) -> list[int]:
    """Batch sizes to try: every one up to EACH, where steps have cliffs, and increments of 1/64 beyond."""
    found = list(range(1, min(most, EACH) + 1))
    while found[-1] < most:
        found.append(min(most, found[-1] + max(1, found[-1] // 64)))
    return found


def summed(samples: np.ndarray) -> Speedup:
    """The speed-up from samples: the first is the estimate, the rest give the interval, widened to contain it."""
    low, high = np.percentile(samples[1:], [5, 95]).tolist()
    value = float(samples[0])
    return Speedup(value, min(low, value), max(high, value))
