"""What a forward pass costs on this machine: the target's part by rows, the drafter's by how deep it drafts.

The target's part is measured when the engine starts, on passes of padding, and corrected by every step that is run. A
machine may have become faster or slower as a whole, so sizes that have not been run for a while follow those that have.
The drafter's part is fitted to what its calls take. Only the proportions matter: the controller compares one pass with
another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate

import numpy as np

from augury.kernels.budget_numba import learn_pass, pass_seconds, refit

Floats = np.ndarray
BOUND = 1.25  # a step counts as at most so many times slower or faster than expected: shared machines have slow moments
FOLLOWS = 0.15  # how far the estimate for a step's size moves towards the step's time
BEYOND = 0.03  # how far all estimates move after a step with more rows than any size
FADES = 0.98  # decay, per step, of the number of steps that each size has seen
SURPRISE = 2.0  # a drafter's call counts as at most so many times the expected or the last one: it may have compiled
FORGET = 0.98  # decay, per call, of what is known of a drafter
RIDGE = 1e-3  # pull towards the last fit, as a share of what is known: a constant depth leaves the parts undetermined
ROUNDS, FEW = 3, 16  # passes of more than FEW rows are timed once: they are rarer, and steps will correct them


class RowCost:
    """Seconds of the target's forward pass by its rows, at the sizes that passes are rounded up to."""

    def __init__(self, points: Mapping[int, float], graphs: Callable[[int], list[int]] | None = None) -> None:
        sizes = sorted(points)
        self._graphs = graphs  # the sizes that a pass of so many requests may have; None: all
        self.sizes = np.array(sizes, np.float64)
        self.seconds = np.array(list(accumulate((points[size] for size in sizes), max)))  # never cheaper with more
        self._seen = np.zeros(len(sizes))
        self._begun = self.seconds[0]

    @property
    def pace(self) -> float:
        """How many times as long as at the start a pass takes: the machine may have other work by now."""
        return float(self.seconds[0] / self._begun)

    def of(self, rows: int, requests: int = 0) -> float:
        """Seconds of a pass; past the last size each further row costs the average of those before it."""
        return float(pass_seconds(float(rows), *self.at(requests)))

    def at(self, requests: int = 0) -> tuple[Floats, Floats]:
        """The sizes of passes that decode so many requests, and their seconds; 0: of all passes."""
        if not requests or self._graphs is None:
            return self.sizes, self.seconds
        places = np.searchsorted(self.sizes, self._graphs(requests))
        return self.sizes[places], self.seconds[places]

    @property
    def shortest(self) -> float:
        """Seconds of a pass of one row."""
        return float(self.seconds[0])

    def with_more(self, rows: int, most: int) -> list[float]:
        """Passes of `rows` rows and 0 .. most more, in passes of `rows` rows."""
        seconds = np.interp(rows + np.arange(most + 1), self.sizes, self.seconds)
        found: list[float] = (seconds / seconds[0]).tolist()
        return found

    def learn(self, rows: int, seconds: float) -> None:
        """Learn from the time of a pass."""
        if seconds > 0:
            follows = FOLLOWS if rows <= self.sizes[-1] else BEYOND
            learn_pass(rows, seconds, self.sizes, self.seconds, self._seen, BOUND, follows, FADES)


class DraftCost:
    """Seconds of a drafter by depth and number of requests: so much per call, per level, and per row of a level."""

    def __init__(self, level: float) -> None:
        # A guess until a call has been timed; it weighs as much as a tenth of a call.
        self._squares = np.diag([0.1, 0.1, 0.1])
        self._products = self._squares @ np.array([0.0, level, 0.0])
        self.fit = np.array([0.0, level, 0.0])  # what a call, a level, and a row of a level take
        self._last = 0.0  # seconds of the last call

    def __call__(self, depth: Floats, requests: int | Floats) -> Floats:
        """Seconds to draft so deep for so many requests; 0 levels cost only the call."""
        base, level, row = self.fit
        found: Floats = np.maximum(base + depth * (level + row * requests), 0.0)
        return found

    def learn(self, depth: int, requests: int, seconds: float) -> None:
        """Learn from the time of a call."""
        x = np.array([1.0, depth, depth * requests])
        expected = float(self(np.array([float(depth)]), requests)[0])
        seconds, self._last = min(seconds, SURPRISE * max(expected, self._last)), seconds
        refit(self._squares, self._products, self.fit, x, seconds, FORGET, RIDGE)


class DepthCost:
    """Seconds of a drafter that is captured with the pass: by the depth of its graph, [depths, numbers of requests]."""

    def __init__(self, depths: tuple[int, ...], requests: list[int], seconds: Floats) -> None:
        self._depths, self._requests = np.array(depths), np.array(requests)
        self._seconds = seconds

    def __call__(self, depth: Floats, requests: int | Floats) -> Floats:
        """Seconds to draft so deep for so many requests: those of the next larger graph."""
        deep = np.searchsorted(self._depths, depth).clip(max=len(self._depths) - 1)
        many = np.searchsorted(self._requests, requests).clip(max=len(self._requests) - 1)
        found: Floats = self._seconds[deep, many]
        return found

    def learn(self, depth: int, requests: int, seconds: float) -> None:
        """Do nothing, as the drafter's time cannot be told from its pass's."""


def sizes_of(most: int, rounded: Callable[[int], int]) -> list[int]:
    """Every size up to `most` rows that passes are rounded up to."""
    return sorted({rounded(rows) for rows in range(1, most + 1)})


def measure_rows(run: Callable[[int], float], sizes: list[int]) -> dict[int, float]:
    """Time passes of these sizes, the best of a few rounds each."""
    return {size: min(run(size) for _ in range(ROUNDS if size <= FEW else 1)) for size in sizes}


def every_size(points: Mapping[int, float]) -> dict[int, float]:
    """Interpolate the cost of every size, for passes that are not rounded up."""
    sizes = sorted(points)
    every = range(1, sizes[-1] + 1)
    return dict(zip(every, np.interp(every, sizes, [points[size] for size in sizes]).tolist(), strict=True))
