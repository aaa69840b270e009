"""A cost curve: what a step took on the machine itself, against requests, rows and context (`augury bench`).

The file is JSON, `augury-cost-curve/1`. Its steps form a full grid. Between its points a step is interpolated along
each axis; noise that would make a larger step cheaper is smoothed first, since a cost model must be monotone to
choose well.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from augury.config.errors import ConfigError
from augury.methods.registry import METHODS
from augury.tools.advise.drafters import DraftingCost
from augury.tools.shared.json_files import read_json

FORMAT = "augury-cost-curve/1"
QUARTILES = 1.35  # standard deviations between the quartiles of a normal law
MEDIAN = 1.25  # a median's standard error over a mean's
LEAST_SPREAD = 0.02  # no ratio is known better than this: the grid is coarse, and machines vary from run to run


class Timed(BaseModel):
    """A median in milliseconds with its quartiles."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    ms: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    count: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Timed:
        if not self.low <= self.ms <= self.high:
            raise ValueError(f"low, ms and high must not fall: {self.low}, {self.ms}, {self.high}")
        return self

    @property
    def error(self) -> float:
        """Standard error of the median, relative to it."""
        return MEDIAN * (self.high - self.low) / QUARTILES / self.ms / math.sqrt(self.count)


class StepPoint(Timed):
    """Steps of so many requests with so many rows each."""

    requests: int = Field(ge=1, le=1 << 16)
    rows: int = Field(ge=1, le=1 << 10)
    context: int = Field(ge=1, le=1 << 24)


class DraftPoint(Timed):
    """Drafting up to so many tokens for so many requests."""

    method: str
    tokens: int = Field(ge=1, le=1 << 10)
    requests: int = Field(ge=1, le=1 << 16)


class CurveFile(BaseModel):
    """The JSON file, validated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str
    model: dict[str, Any]
    conditions: dict[str, Any]
    buckets: list[int] = Field(default=[], description="row counts a pass is padded to; empty: none")
    steps: list[StepPoint] = Field(min_length=1)
    reading: Timed  # per prompt token
    drafting: list[DraftPoint] = []

    @model_validator(mode="after")
    def _sound(self) -> CurveFile:
        if self.format != FORMAT:
            raise ValueError(f"format is {self.format!r}, this version reads {FORMAT!r}")
        if sorted(set(self.buckets)) != self.buckets or any(b < 1 for b in self.buckets):
            raise ValueError("buckets must be rising whole numbers above 0")
        axes = [sorted({getattr(p, axis) for p in self.steps}) for axis in ("context", "requests", "rows")]
        points = {(p.context, p.requests, p.rows) for p in self.steps}
        if not len(self.steps) == len(points) == math.prod(map(len, axes)):
            raise ValueError("steps must be a full grid: every context with every number of requests and rows, once")
        if axes[2][0] != 1:
            raise ValueError("steps need rows = 1, plain decoding")
        unknown = [p.method for p in self.drafting if p.method not in METHODS]
        if unknown:
            raise ValueError(f"drafting names the unknown method {unknown[0]!r}")
        return self


@dataclass(frozen=True)
class CostCurve:
    """A cost model that interpolates a measured curve."""

    file: CurveFile
    path: str = ""

    @property
    def name(self) -> str:
        """What the figures come from."""
        return f"cost curve {Path(self.path).name}, measured on {self.file.conditions.get('cpu', 'this machine')}"

    @property
    def free_bytes(self) -> float:
        """Infinite: a curve measures time, not memory."""
        return math.inf

    @property
    def leans(self) -> float:
        """0: the steps were measured, so no bias is known."""
        return 0.0

    @property
    def cannot(self) -> str | None:
        """None: the target ran when the curve was measured."""
        return None

    def fits(self, requests: int, context: float, beside_bytes: float) -> bool:
        """Always True, since memory was not measured."""
        return True

    @cached_property
    def axes(self) -> tuple[list[int], list[int], list[int]]:
        """Contexts, numbers of requests and rows per request of the grid, each ascending."""
        steps = self.file.steps
        return tuple(sorted({getattr(p, axis) for p in steps}) for axis in ("context", "requests", "rows"))  # type: ignore[return-value]

    @cached_property
    def _points(self) -> dict[tuple[int, int, int], StepPoint]:
        return {(p.context, p.requests, p.rows): p for p in self.file.steps}

    @cached_property
    def _grid(self) -> np.ndarray:
        """Milliseconds by context, requests, rows; rising along every axis."""
        contexts, requests, rows = self.axes
        shape = len(contexts), len(requests), len(rows)
        points = [self._points[c, r, n] for c in contexts for r in requests for n in rows]
        grid, counts = (np.array([getattr(p, name) for p in points]).reshape(shape) for name in ("ms", "count"))
        for place in np.ndindex(shape[:2]):
            grid[place] = ironed(grid[place], counts[place])
        return np.maximum.accumulate(np.maximum.accumulate(grid, axis=1), axis=0)

    def padded(self, rows: float) -> float:
        """Rows that a pass really runs for so many: padded to the next bucket."""
        buckets = self.file.buckets
        at = bisect_left(buckets, rows - 1e-9)
        return float(buckets[at]) if at < len(buckets) else rows

    def step_ms(self, requests: int, rows_per_request: float, context: float) -> float:
        """One forward pass of the target with verification, interpolated on the grid and extrapolated beyond it."""
        contexts, sizes, _ = self.axes
        rows = self.padded(requests * rows_per_request)
        by_context = []
        for c in range(len(contexts)):
            if requests >= sizes[-1]:  # more requests than were measured: only the rows count
                by_context.append(self._at(c, len(sizes) - 1, rows))
                continue
            lines = [self._at(c, r, rows / requests * size) for r, size in enumerate(sizes)]
            by_context.append(float(np.interp(requests, sizes, lines)))
        if len(contexts) == 1 or context <= contexts[-1]:
            return float(np.interp(context, contexts, by_context))
        # A longer context than was measured: add what a plain step gains, so that more rows are never cheaper.
        size = min(range(len(sizes)), key=lambda r: abs(sizes[r] - requests))
        grown = self._grid[-1, size, 0] - self._grid[-2, size, 0]
        return float(by_context[-1] + grown / (contexts[-1] - contexts[-2]) * (context - contexts[-1]))

    def _at(self, context: int, size: int, rows: float) -> float:
        """Milliseconds at one context and number of requests of the grid (by index), for so many rows in total."""
        requests = self.axes[1][size]
        places = [self.padded(requests * n) for n in self.axes[2]]
        values = self._grid[: context + 1, size]
        if len(places) == 1 or rows <= places[-1]:
            return float(np.interp(rows, places, values[-1]))
        # More rows than were measured: the steepest last segment of this context and the shorter ones.
        run = max(places[-1] - places[-2], 1.0)
        slope = float((values[:, -1] - values[:, -2]).max()) / run
        return float(values[-1, -1] + slope * (rows - places[-1]))

    def draft_ms(self, drafting: DraftingCost, requests: int, tokens: int, context: float) -> float:
        """Drafting time as measured, scaled by K for a drafter that runs once per token, unscaled for any other."""
        if tokens <= 0:
            return 0.0
        points = sorted((p for p in self.file.drafting if p.method == drafting.method), key=lambda p: p.requests)
        if not points:
            raise ConfigError(
                f"{self.path}: the curve has no drafting time of {drafting.method}; measure it with "
                f'`augury bench --cost-curve FILE -sc \'{{"method": "{drafting.method}", ...}}\'`.'
            )
        card = METHODS[drafting.method]
        chained = card.weights != "none" and not card.one_pass
        each = [p.ms * (tokens / p.tokens if chained else 1.0) for p in points]
        return along(requests, [p.requests for p in points], each)

    def drafts(self, method: str) -> bool:
        """Whether drafting by this method was measured."""
        return any(p.method == method for p in self.file.drafting)

    def read_ms(self, tokens: float) -> float:
        """Prefill of this many prompt tokens."""
        return tokens * self.file.reading.ms

    def spread(self, requests: int, rows_per_request: float, context: float) -> float:
        """Standard deviation of the log ratio, from the quartiles at the nearest grid points; 0 for a plain step."""
        if rows_per_request <= 1:
            return 0.0
        contexts, sizes, rows = self.axes
        nearest = [min(axis, key=lambda v: abs(v - x)) for axis, x in ((contexts, context), (sizes, requests))]
        n = min(rows, key=lambda v: abs(v - rows_per_request))
        here, plain = self._points[nearest[0], nearest[1], n], self._points[nearest[0], nearest[1], 1]
        return max(LEAST_SPREAD, math.hypot(here.error, plain.error))


def ironed(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The nearest non-decreasing sequence in the least-squares sense (pool adjacent violators)."""
    pools: list[list[float]] = []  # mean, weight, length
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            last, before = pools.pop(), pools[-1]
            whole = before[1] + last[1]
            before[:] = [(before[0] * before[1] + last[0] * last[1]) / whole, whole, before[2] + last[2]]
    return np.concatenate([np.full(int(length), mean) for mean, _, length in pools])


def along(x: float, places: list[Any], values: list[float]) -> float:
    """Linear interpolation between points; past the last one, extrapolation along the last segment, never falling."""
    if len(places) == 1 or x <= places[-1]:
        return float(np.interp(x, places, values))
    run = places[-1] - places[-2]
    slope = max(0.0, (values[-1] - values[-2]) / run) if run else 0.0
    return float(values[-1] + slope * (x - places[-1]))


def check_curve(value: Any, where: str) -> CostCurve:
    """The curve, if the value is valid; otherwise ConfigError names the field that is wrong."""
    if isinstance(value, dict) and "marginal_accept_rates" in value and "format" not in value:
        raise ConfigError(f"{where}: this is a speculation profile, no cost curve; give it to --profile.")
    try:
        return CostCurve(CurveFile.model_validate(value), where)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"{where}: {field}: {first['msg'].removeprefix('Value error, ')}.") from None


def read_curve(path: Path) -> CostCurve:
    """Read and check a file."""
    return check_curve(read_json(path), str(path))
