"""The statistics of a certificate: G-tests, their p-values, Holm's correction, and what a test could have detected.

No dependency beyond the standard library; the tests check it against published values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

LEAST_EXPECTED = 5.0  # cells with a smaller expectation are merged: below it the chi-square approximation is poor
ROUNDOFF = 1e-15
STEPS = 10_000  # no series or fraction here needs as many
Label = TypeVar("Label")


class CountCell(NamedTuple, Generic[Label]):
    """A label with its observed and its expected count; the label None stands for all rare ones together."""

    label: Label | None
    observed: float
    expected: float


class Fit(NamedTuple):
    """How well observations fit what was expected."""

    statistic: float  # G with Williams' correction
    pearson: float  # the classical chi-square, for comparison
    df: int
    p: float
    size: float  # effective number of samples; of two samples n and m, n m / (n + m)


# --- the chi-square law ------------------------------------------------------------------------------------------


def gamma_upper(a: float, x: float) -> float:
    """The regularised upper incomplete gamma function Q(a, x)."""
    if x <= 0:
        return 1.0
    if math.isinf(x):
        return 0.0
    scale = a * math.log(x) - x - math.lgamma(a)
    if x < a + 1:
        return 1.0 - min(1.0, math.exp(scale) * _lower_series(a, x))
    return math.exp(scale) * _upper_fraction(a, x)


def _lower_series(a: float, x: float) -> float:
    term = total = 1.0 / a
    for n in range(1, STEPS):
        term *= x / (a + n)
        total += term
        if term < total * ROUNDOFF:
            break
    return total


def _upper_fraction(a: float, x: float) -> float:
    """The continued fraction of Q(a, x), by Lentz's method."""
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    value = d
    for n in range(1, STEPS):
        factor = -n * (n - a)
        b += 2
        d = 1 / (factor * d + b or tiny)
        c = b + factor / c or tiny
        value *= d * c
        if abs(d * c - 1) < ROUNDOFF:
            break
    return value


def chi2_survival(x: float, df: float) -> float:
    """The probability that a chi-square variable exceeds x."""
    return gamma_upper(df / 2, x / 2)


@lru_cache(maxsize=4096)
def chi2_critical(alpha: float, df: int) -> float:
    """The value that a chi-square variable exceeds with probability alpha."""
    return _falling_root(lambda x: chi2_survival(x, df), alpha)


def noncentral_survival(x: float, df: float, shift: float) -> float:
    """The same for a noncentral chi-square variable: a Poisson(shift / 2) mixture of those with more freedom."""
    half, y, a = shift / 2, x / 2, df / 2
    tail = gamma_upper(a, y)
    log_weight, log_step = -half, a * math.log(y) - y - math.lgamma(a + 1) if y > 0 else -math.inf
    total = 0.0
    for j in range(STEPS):
        total += math.exp(log_weight) * tail
        if j > half and log_weight < -40:
            break
        tail += math.exp(log_step)  # Q(a + 1, y) from Q(a, y)
        log_step += math.log(y / (a + j + 1)) if y > 0 else 0.0
        log_weight += math.log(half / (j + 1)) if half > 0 else -math.inf
    return min(1.0, total)


@lru_cache(maxsize=4096)
def detectable_shift(alpha: float, df: int, power: float = 0.9) -> float:
    """The noncentrality that a test at level alpha finds with the given probability."""
    critical = chi2_critical(alpha, df)
    return _falling_root(lambda shift: 1 - noncentral_survival(critical, df, shift), 1 - power)


def _falling_root(function: Callable[[float], float], value: float) -> float:
    """The x >= 0 at which a falling function reaches a value."""
    low, high = 0.0, 1.0
    while function(high) > value:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        if function(middle) > value:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def detectable_variation(size: float, df: int, alpha: float, power: float = 0.9) -> float:
    """The total variation such that every shift at least as large is found with the given probability.

    Of all shifts by d from a law, the hardest to see takes d from one half of its mass and gives it to the other in
    proportion; its noncentrality is 4 d**2 for each sample.
    """
    return min(1.0, math.sqrt(detectable_shift(alpha, df, power) / (4 * size))) if size > 0 and df > 0 else 1.0


# --- cells and tests ---------------------------------------------------------------------------------------------


def merged(cells: Sequence[CountCell[Label]], least: float = LEAST_EXPECTED) -> list[CountCell[Label]]:
    """Merge cells of small expectation, adding the smallest of the others until the merged cell is large enough."""
    falling = sorted(cells, key=lambda cell: -cell.expected)
    kept = [cell for cell in falling if cell.expected >= least]
    small = falling[len(kept) :]
    if not small:
        return kept
    while kept and sum(cell.expected for cell in small) < least:
        small.insert(0, kept.pop())
    return [*kept, CountCell(None, sum(cell.observed for cell in small), sum(cell.expected for cell in small))]


def against_law(observed: Mapping[Label, int], law: Mapping[Label, float]) -> tuple[list[CountCell[Label]], Fit]:
    """Test counts against a law; labels it does not name are impossible, so a single one disproves it."""
    size = sum(observed.values())
    labels = [*law, *(label for label in observed if label not in law)]
    cells = merged([CountCell(label, observed.get(label, 0), size * law.get(label, 0.0)) for label in labels])
    if any(count for label, count in observed.items() if label not in law):
        return cells, Fit(math.inf, math.inf, max(1, len(cells) - 1), 0.0, size)
    if len(cells) < 2:
        return cells, _nothing(size)
    shares = sum(size / cell.expected for cell in cells)
    williams = 1 + (shares - 1) / (6 * size * (len(cells) - 1))
    return cells, _fit([(cell.observed, cell.expected) for cell in cells], len(cells) - 1, williams, size)


def against_samples(ours: Mapping[Label, int], theirs: Mapping[Label, int]) -> tuple[list[CountCell[Label]], Fit]:
    """Test two samples against each other; a cell's expectation is what the pooled law gives for ours."""
    n, m = sum(ours.values()), sum(theirs.values())
    labels = dict.fromkeys([*ours, *theirs])
    pooled = {label: (ours.get(label, 0) + theirs.get(label, 0)) / max(1, n + m) for label in labels}
    least = LEAST_EXPECTED * n / max(1, min(n, m))  # the smaller sample's expectation is the one that counts
    cells = merged([CountCell(label, ours.get(label, 0), n * pooled[label]) for label in labels], least)
    size = n * m / max(1, n + m)
    if len(cells) < 2 or not n or not m:
        return cells, _nothing(size)
    columns = sum(n / cell.expected for cell in cells)
    rows = (n + m) / n + (n + m) / m
    williams = 1 + (rows - 1) * (columns - 1) / (6 * (n + m) * (len(cells) - 1))
    pairs = [(cell.observed, cell.expected) for cell in cells]
    # Pooled counts minus ours are theirs, and so are the expectations.
    pairs += [(cell.expected * (n + m) / n - cell.observed, cell.expected * m / n) for cell in cells]
    return cells, _fit(pairs, len(cells) - 1, williams, size)


def _fit(pairs: Sequence[tuple[float, float]], df: int, williams: float, size: float) -> Fit:
    statistic = max(0.0, g_statistic(pairs) / williams)
    return Fit(statistic, sum((o - e) ** 2 / e for o, e in pairs), df, chi2_survival(statistic, df), size)


def g_statistic(pairs: Sequence[tuple[float, float]]) -> float:
    """Twice the log-likelihood ratio of observed against expected counts."""
    return 2 * sum(o * math.log(o / e) for o, e in pairs if o > 1e-9)


def _nothing(size: float) -> Fit:
    """The fit of fewer than two cells, which shows nothing."""
    return Fit(0.0, 0.0, 0, 1.0, size)


def holm(values: Sequence[float]) -> list[float]:
    """p-values with Holm's correction: those below alpha are significant at family-wise level alpha."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    adjusted, largest = [0.0] * len(values), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, values[i] * (len(values) - place)))
        adjusted[i] = largest
    return adjusted
