"""A server without speculation to compare with: live, or as stored figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.tools.live.window import Window
from augury.tools.shared.json_files import read_json

FEW = 5  # requests; with fewer, a latency means nothing
WORSE = 1.1  # of a tail
LESS_HIT = 0.05  # of prompt tokens
SAME = 0.15


@dataclass(frozen=True, slots=True)
class Speeds:
    """One server's latencies in seconds, prefix-cache hit rate and running requests."""

    tpot: float | None = None  # mean
    itl: float | None = None  # mean
    tails: tuple[tuple[str, float | None], ...] = ()  # p99 of TTFT, TPOT and whole requests
    hits: float | None = None
    running: float | None = None


def of_window(window: Window) -> Speeds:
    """The speeds of a live server."""
    many = {name: found for name, found in window.histograms.items() if found.count >= FEW}
    means = {name: found.mean for name, found in many.items()}
    tails = tuple((name, many[name].quantile(0.99) if name in many else None) for name in ("ttft", "tpot", "e2e"))
    return Speeds(means.get("tpot"), means.get("itl"), tails, window.hit_rate, window.after.gauges.get("running"))


def of_file(path: Path) -> Speeds:
    """The speeds in a file written by `augury check --json` or `vllm bench serve --save-result`."""
    option = f"--baseline-json {path}"
    found = read_json(path, option)
    if isinstance(found, dict) and isinstance(found.get("models"), list) and found["models"]:
        return _of_check(found["models"][0])
    if isinstance(found, dict) and _number(found, "mean_tpot_ms") is not None:
        return _of_bench(found)
    raise ConfigError(f"{option}: write it with `augury check URL --json`, or `vllm bench serve --save-result`.")


def _of_check(model: Any) -> Speeds:
    window = model.get("window") if isinstance(model, dict) else None
    if not isinstance(window, dict):
        return Speeds()
    latency = window.get("latency_seconds")
    table: dict[str, Any] = latency if isinstance(latency, dict) else {}

    def of(name: str, which: str) -> float | None:
        found = table.get(name)
        enough = isinstance(found, dict) and (_number(found, "count") or 0) >= FEW
        return _number(found, which) if enough and isinstance(found, dict) else None

    tails = tuple((name, of(name, "p99")) for name in ("ttft", "tpot", "e2e"))
    return Speeds(
        of("tpot", "mean"), of("itl", "mean"), tails, _number(window, "prefix_hit_rate"), _number(window, "running")
    )


def _of_bench(found: dict[str, Any]) -> Speeds:
    def seconds(name: str) -> float | None:
        value = _number(found, name)
        return None if value is None else value / 1000

    tails = (("ttft", seconds("p99_ttft_ms")), ("tpot", seconds("p99_tpot_ms")), ("e2e", seconds("p99_e2el_ms")))
    return Speeds(seconds("mean_tpot_ms"), seconds("mean_itl_ms"), tails, None, _number(found, "max_concurrency"))


def _number(found: dict[str, Any], name: str) -> float | None:
    value = found.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else None


def compared(own: Speeds, plain: Speeds) -> dict[str, Any]:
    """The effect of speculation as facts; a fact is left out if either side has too few requests to tell."""
    found: dict[str, Any] = {}
    gain = plain.tpot / own.tpot if own.tpot and plain.tpot else None
    if gain is not None:
        found["speed_up"] = gain
        pairs = [(mine, theirs) for (_, mine), (_, theirs) in zip(own.tails, plain.tails, strict=False)]
        known = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs]
        if known:
            found["tail_worse"] = gain > 1 and any(mine > WORSE * theirs for mine, theirs in known)
        if own.itl and plain.itl:
            found["itl_unchanged"] = abs(own.itl / plain.itl - 1) < SAME and gain > 1 + SAME
    if own.hits is not None and plain.hits is not None:
        found["prefix_hits_fell"] = own.hits + LESS_HIT < plain.hits
    return found
