"""Compares two servers, or one before and after: ratios with intervals by resampling requests, and a verdict."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from augury.config.errors import ConfigError

RESAMPLES = 500
FEWEST = 8  # requests on each side below which no interval is given
PARTS = 6  # stretches that a run without rounds is divided into
CONDITIONS = (
    "model",
    "dataset",
    "max_tokens",
    "temperature",
    "ignore_eos",
    "endpoint",
    "request_rate",
    "burstiness",
    "prompts_reused",
)
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # 95 %, by rounds - 1


class Ratio(NamedTuple):
    """New over old with its 95 % interval; the bounds are None if the requests are too few or unknown."""

    value: float
    low: float | None
    high: float | None

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


@dataclass(frozen=True, slots=True)
class Comparison:
    """New against old at one concurrency; above 1 is better in every ratio."""

    concurrency: int
    speed: Ratio  # output tokens per second and user
    ttft: Ratio
    tpot: Ratio
    throughput: float  # total output tokens per second; no interval, as each run has only one value
    paired: bool


Requests = NDArray[np.float64]  # one row per request: prompt, tokens, latency, ttft, tpot, round
Draw = tuple[NDArray[np.int64], NDArray[np.int64]]  # rows of the new, rows of the old


class SavedRun(NamedTuple):
    """A saved run."""

    name: str
    results: list[dict[str, Any]]
    conditions: dict[str, Any]  # empty for vLLM's files

    def differences(self, conditions: dict[str, Any]) -> list[str]:
        """The conditions that differed then, to which a ratio may be due rather than to the server."""
        names = [name for name in CONDITIONS if name in self.conditions]
        pairs = [(name, conditions.get(name), self.conditions[name]) for name in names]
        return [f"{name} {now} now, {then} then" for name, now, then in pairs if now != then]


def read_results(path: Path) -> SavedRun:
    """Read results saved by this command or by `vllm bench serve --save-result`: an object, a list, or JSON lines."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--compare {path}: {getattr(error, 'strerror', None) or 'not a text in UTF-8'}.") from None
    try:
        value = json.loads(text)
    except ValueError:
        try:
            value = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise ConfigError(f"--compare {path}: not JSON.") from None
    found = value.get("results", [value]) if isinstance(value, dict) else value
    results = found if isinstance(found, list) else []
    if not results or not all(isinstance(one, dict) and "output_throughput" in one for one in results):
        raise ConfigError(f"--compare {path}: no result of `augury bench serve --save` or `vllm bench serve` in it.")
    conditions = value.get("conditions", {}) if isinstance(value, dict) else {}
    return SavedRun(path.name, results, conditions if isinstance(conditions, dict) else {})


def drawable(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results that can be plotted; vLLM's lack the throughput per user, which follows from the time per token."""
    found = []
    for one in results:
        each = one.get("mean_tpot_ms") or float("inf")
        found.append({"output_throughput_per_user": 1000 / each, **one})
    return [one for one in found if one.get("max_concurrency") and one.get("completed", 1)]


def compare(new: list[dict[str, Any]], old: list[dict[str, Any]], seed: int = 0) -> list[Comparison]:
    """Compare every concurrency at which both have answers."""
    before = {one.get("max_concurrency"): one for one in old if one.get("completed", 1)}
    fresh = [one for one in new if one.get("completed", 1) and one.get("max_concurrency") in before]
    return [_level(one, before[one["max_concurrency"]], seed) for one in fresh]


def _level(new: dict[str, Any], old: dict[str, Any], seed: int) -> Comparison:
    fresh, past = _requests(new), _requests(old)
    same = bool(new.get("dataset_sha256")) and new.get("dataset_sha256") == old.get("dataset_sha256")
    if same:
        fresh, past = _matched(fresh, past)
    draws = _draws(fresh, past, same, np.random.default_rng(seed))
    speed = _ratio(fresh, past, _speed, draws, inverse=False)
    ttft = _ratio(fresh, past, _first, draws, inverse=True)
    tpot = _ratio(fresh, past, _each, draws, inverse=True)
    return Comparison(
        new["max_concurrency"],
        speed or _plain(new, old, "output_throughput", False),
        ttft or _plain(new, old, "median_ttft_ms", True),
        tpot or _plain(new, old, "median_tpot_ms", True),
        _over(new["output_throughput"], old["output_throughput"]),
        same,
    )


def _requests(result: dict[str, Any]) -> Requests:
    """One row per completed request; empty if the file does not list single requests."""
    tokens, ttfts = result.get("output_lens") or [], result.get("ttfts") or []
    latencies = result.get("latencies") or [
        first + sum(gaps) for first, gaps in zip(ttfts, result.get("itls") or [], strict=False)
    ]
    prompts, rounds = result.get("prompts") or [-1] * len(tokens), result.get("rounds") or [0] * len(tokens)
    rows = [
        (prompt, count, latency, first, (latency - first) / (count - 1) if count > 1 else np.nan, part)
        for prompt, count, latency, first, part in zip(prompts, tokens, latencies, ttfts, rounds, strict=False)
        if count
    ]
    found = np.array(rows, dtype=np.float64).reshape(-1, 6)
    if len(found) and _blocks(found) == 1:  # requests are in order of completion
        found[:, 5] = np.arange(len(found)) * min(PARTS, len(found) // 2 or 1) // len(found)
    return found


def _matched(new: Requests, old: Requests) -> tuple[Requests, Requests]:
    """Rows of both sides paired by prompt; surplus answers of one side are dropped."""
    pairs: list[tuple[int, int]] = []
    for prompt in np.unique(new[:, 0]):
        pairs += zip(np.flatnonzero(new[:, 0] == prompt), np.flatnonzero(old[:, 0] == prompt), strict=False)
    chosen = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return new[chosen[:, 0]], old[chosen[:, 1]]


def _speed(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(rows[..., 1].sum(-1) / rows[..., 2].sum(-1))


def _first(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.median(rows[..., 3], -1))


def _each(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.nanmedian(rows[..., 4], -1))


def _ratio(new: Requests, old: Requests, figure: Any, draws: list[Draw], inverse: bool) -> Ratio | None:
    """The ratio and its interval, computed on the logarithm with Student's t, since rounds are few."""
    if not len(new) or not len(old) or (figure is _each and (np.isnan(new[:, 4]).all() or np.isnan(old[:, 4]).all())):
        return None
    whole = _over(float(figure(new)), float(figure(old)), inverse)
    if not draws:
        return Ratio(whole, None, None)
    ratios = np.array([_over(float(figure(new[mine])), float(figure(old[theirs])), inverse) for mine, theirs in draws])
    ratios = ratios[np.isfinite(ratios) & (ratios > 0)]  # answers that arrived in one chunk have no time per token
    if len(ratios) < RESAMPLES // 2:
        return Ratio(whole, None, None)
    spread = float(np.std(np.log(ratios))) * STUDENT[min(_blocks(new), len(STUDENT) + 1) - 2]
    return Ratio(whole, whole * float(np.exp(-spread)), whole * float(np.exp(spread)))


def _draws(new: Requests, old: Requests, paired: bool, dice: np.random.Generator) -> list[Draw]:
    """Resamples of rounds first, since a disturbance lasts longer than a request, then of requests within them.

    Pairs are drawn together, so that neither a long answer nor a disturbed round counts as a difference.
    """
    if min(len(new), len(old)) < FEWEST or min(_blocks(new), _blocks(old)) < 2:
        return []
    mine, theirs = ([np.flatnonzero(rows[:, 5] == b) for b in np.unique(rows[:, 5])] for rows in (new, old))
    found = []
    for _ in range(RESAMPLES):
        first = _resampled(mine, dice)
        found.append((first, first if paired else _resampled(theirs, dice)))
    return found


def _resampled(blocks: list[NDArray[np.int64]], dice: np.random.Generator) -> NDArray[np.int64]:
    chosen = [blocks[i] for i in dice.integers(0, len(blocks), len(blocks))]
    return np.concatenate([block[dice.integers(0, len(block), len(block))] for block in chosen])


def _blocks(rows: Requests) -> int:
    return len(np.unique(rows[:, 5]))


def _plain(new: dict[str, Any], old: dict[str, Any], key: str, inverse: bool) -> Ratio:
    return Ratio(_over(new.get(key) or 0.0, old.get(key) or 0.0, inverse), None, None)


def _over(new: float, old: float, inverse: bool = False) -> float:
    above, below = (old, new) if inverse else (new, old)
    return above / below if below else float("nan")


def verdict(found: list[Comparison]) -> str:
    """A verdict over all levels in one line."""
    said, alike, unknown = [], [], []
    for one in found:
        streams = str(one.concurrency)
        if one.speed.low is None or one.speed.high is None:
            unknown.append(f"{one.speed.value:.2f}x at {_streams([streams])}")
        elif one.speed.clear:
            said.append(f"{one.speed.value:.2f}x ({one.speed.low:.2f}-{one.speed.high:.2f}) at {_streams([streams])}")
        else:
            alike.append(streams)
    if alike:
        said.append(f"no difference beyond noise at {_streams(alike)}")
    if unknown:
        said.append(f"{', '.join(unknown)} (too few requests for an interval)")
    return "; ".join(said) or "nothing to compare: at no concurrency both have answers"


def _streams(numbers: list[str]) -> str:
    return (
        f"{' and '.join(filter(None, [', '.join(numbers[:-1]), numbers[-1]]))} stream{'s' if numbers != ['1'] else ''}"
    )


def as_records(found: list[Comparison]) -> list[dict[str, Any]]:
    """The comparisons as JSON."""
    return [
        {
            "max_concurrency": one.concurrency,
            "output_speed_ratio": one.speed._asdict(),
            "ttft_ratio": one.ttft._asdict(),
            "tpot_ratio": one.tpot._asdict(),
            "output_throughput_ratio": one.throughput,
            "paired": one.paired,
            "clear": one.speed.clear,
        }
        for one in found
    ]
