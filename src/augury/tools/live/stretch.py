"""Which stretch a verdict is about: the interval if that settles the matter, otherwise everything since the start."""

from __future__ import annotations

from collections.abc import Iterator

from augury.methods.registry import LOOK_UPS
from augury.tools.live.drafting import MANY, wilson
from augury.tools.live.expectation import Expectation
from augury.tools.live.window import Window

HALF = 0.5  # the knowledge's bar for a drafter with weights, at the first position
CHANGE = 0.1  # a tenth up or down is a change


def settled(window: Window, expected: Expectation) -> Window:
    """Judge by the interval, even a short one, if each of its figures is certainly on one side of its bar."""
    if not window.since_start or not window.seconds or window.in_interval.drafts < MANY:
        return window
    bars = list(_bars(window, expected))
    undecided = any(low < bar <= high for bar, (low, high) in bars)
    return window if undecided or not bars else window.by_interval()


def _bars(window: Window, expected: Expectation) -> Iterator[tuple[float, tuple[float, float]]]:
    """Every bar, with the confidence interval of the figure that is compared with it."""
    part, model_based = window.in_interval, expected.method not in LOOK_UPS
    if part.rate_interval and expected.rate:
        yield expected.rate[0], part.rate_interval
    if part.rate_interval and model_based and expected.fault_rate:
        yield expected.fault_rate, part.rate_interval
    if part.first is not None and model_based:
        yield HALF, wilson(part.first, part.drafts)
    if part.length_interval and expected.length:
        yield expected.length[0], part.length_interval


def rate_change(window: Window) -> float | None:
    """The relative change of the interval's rate to that since the start; 0 if maybe chance, None if not comparable."""
    part, whole = window.in_interval, window.whole
    if window.probes:  # probes use other prompts than the traffic
        return None
    if part.drafts < MANY or whole.drafts < part.drafts + MANY or not (part.rate_interval and whole.rate_interval):
        return None
    apart = part.rate_interval[1] < whole.rate_interval[0] or whole.rate_interval[1] < part.rate_interval[0]
    change = (part.rate or 0.0) / whole.rate - 1 if whole.rate else 1.0
    return change if apart and abs(change) > CHANGE else 0.0
