"""What a pass costs on this machine: the target's part by rows, the drafter's by how deep it drafts.

The target's part is measured when the engine starts, on passes of padding, and corrected by every step that is run: a
step that takes longer than expected raises all sizes a little and its own more. The drafter's part is fitted
to what its calls take. Only the proportions matter: the controller compares one pass with another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate

import numpy as np

from augury.kernels.budget_numba import learn_pass, pass_seconds, refit

Floats = np.ndarray
BOUND = 1.25  # one step may say at most this much, up or down: a machine that others use has slow moments
TOGETHER, ALONE = 0.03, 0.25  # how far all sizes, and a step's own on top of it, follow what it says
FORGET = 0.98  # of what is known of a drafter, with each of its calls
RIDGE = 1e-3  # of what is known: depths that never vary tell the parts apart by size alone
ROUNDS, FEW = 3, 16  # larger passes are timed once: they are rarer, and steps will correct them


class RowCost:
    """Seconds of a target's pass by its rows, at the sizes that passes are rounded up to."""

    def __init__(self, points: Mapping[int, float]) -> None:
        sizes = sorted(points)
        self.sizes = np.array(sizes, np.float64)
        self.seconds = np.array(list(accumulate((points[size] for size in sizes), max)))  # never cheaper with more

    def of(self, rows: int) -> float:
        """Past the last size each further row costs what those before it do on average."""
        return float(pass_seconds(float(rows), self.sizes, self.seconds))

    def learn(self, rows: int, seconds: float) -> None:
        """Take in the time of a pass."""
        if seconds > 0:
            learn_pass(rows, seconds, self.sizes, self.seconds, BOUND, TOGETHER, ALONE)


class DraftCost:
    """Seconds of a drafter by how deep it goes and for how many: a call, a level, and a row of a level each cost."""

    def __init__(self, level: float) -> None:
        # A guess until the drafter has been heard: it weighs as much as a tenth of a call.
        self._squares = np.diag([0.1, 0.1, 0.1])
        self._products = self._squares @ np.array([0.0, level, 0.0])
        self._fit = np.array([0.0, level, 0.0])

    def __call__(self, depth: Floats, requests: int) -> Floats:
        """Seconds to draft so deep for so many; 0 levels cost only the call."""
        base, level, row = self._fit
        found: Floats = np.maximum(base + depth * (level + row * requests), 0.0)
        return found

    def learn(self, depth: int, requests: int, seconds: float) -> None:
        """Take in the time of a call."""
        x = np.array([1.0, depth, depth * requests])
        refit(self._squares, self._products, self._fit, x, seconds, FORGET, RIDGE)


def sizes_of(most: int, rounded: Callable[[int], int]) -> list[int]:
    """Every size up to `most` rows that passes are rounded up to."""
    return sorted({rounded(rows) for rows in range(1, most + 1)})


def measure_rows(run: Callable[[int], float], sizes: list[int]) -> dict[int, float]:
    """Time passes of these sizes, the best of a few rounds each."""
    return {size: min(run(size) for _ in range(ROUNDS if size <= FEW else 1)) for size in sizes}


def every_size(points: Mapping[int, float]) -> dict[int, float]:
    """What sizes between the measured ones cost, where passes are as large as they need be."""
    sizes = sorted(points)
    every = range(1, sizes[-1] + 1)
    return dict(zip(every, np.interp(every, sizes, [points[size] for size in sizes]).tolist(), strict=True))
