"""The controller's arithmetic, compiled: it runs before every forward pass, and a small model's takes a millisecond.

Arrays are what the controller keeps (see engine/odds.py, engine/cost.py and engine/goodput.py, which say what they
mean); nothing here decides.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.kernels.room_numba import put

OPTIONS = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy"}


@njit(**OPTIONS)
def enter_drafts(own, shared, tenant_of, slots, depths, accepted, own_fades, shared_fades):
    """Enter one draft per slot in the slot's own record, the common one and its tenant's; the records fade first."""
    for slot in slots:
        for line in range(2 if tenant_of[slot] else 1):
            shared[line * tenant_of[slot]] *= shared_fades
        own[slot] *= own_fades
    for i in range(len(slots)):
        slot, tried = slots[i], min(accepted[i] + 1, depths[i])
        for position in range(own.shape[2]):
            for kind in range(2):
                new = position < (accepted[i] if kind else tried)
                own[slot, kind, position] += new
                shared[0, kind, position] += new
                if tenant_of[slot]:
                    shared[tenant_of[slot], kind, position] += new


@njit(**OPTIONS)
def reach_of(own, shared, tenant_of, slots, first, lean):
    """The chance that each position of a draft is reached and accepted, [requests, positions]."""
    reach = np.empty((len(slots), own.shape[2]))
    for i in range(len(slots)):
        slot, chance = slots[i], 1.0
        for position in range(own.shape[2]):
            believed = (shared[0, 1, position] + lean * first) / (shared[0, 0, position] + lean)
            if tenant_of[slot]:
                record = shared[tenant_of[slot]]
                believed = (record[1, position] + lean * believed) / (record[0, position] + lean)
            chance *= (own[slot, 1, position] + lean * believed) / (own[slot, 0, position] + lean)
            reach[i, position] = chance
    return reach


@njit(**OPTIONS)
def pass_seconds(rows, sizes, seconds):
    """Seconds of a pass of so many rows: those of the size it is rounded up to, or in proportion past the largest."""
    last = len(sizes) - 1
    beyond = max(rows - sizes[last], 0.0)
    return seconds[min(np.searchsorted(sizes, rows), last)] + beyond * (seconds[last] / sizes[last])


@njit(**OPTIONS)
def share_rows(reach, rows, sizes, seconds, drafting, gain):
    """Nodes for every request: for each depth limit rows are added best first; the most tokens per second win."""
    requests, positions = reach.shape
    best_worth, best_depth = 0.0, 0
    order, flat = np.argsort(reach.ravel())[::-1], reach.ravel()
    costs = np.empty(len(flat) + 1)
    for n in range(len(costs)):
        costs[n] = pass_seconds(float(rows + n), sizes, seconds)
    best_rate = gain * requests / costs[0]
    for depth in range(1, positions + 1):
        taken, tokens = 0, float(requests)
        for place in order:
            worth = flat[place]
            if worth <= 0:
                break
            if place % positions >= depth:
                continue
            taken, tokens = taken + 1, tokens + worth
            rate = tokens / (costs[taken] + drafting[depth - 1])
            if rate > best_rate:
                best_rate, best_worth, best_depth = rate, worth, depth
    given = np.zeros(requests, np.int64)
    for i in range(requests):
        for position in range(best_depth):
            given[i] += reach[i, position] >= best_worth
    return given


@njit(**OPTIONS)
def longest_without(given, most, slots, quiet, patience, soon, passed):
    """Count `passed` passes; returns which request has gone longest without drafts beyond its patience, -1 for none."""
    who, longest = -1, -1
    for i in range(len(slots)):
        slot = slots[i]
        quiet[slot] += passed
        if given[i] > 0:
            patience[slot] = soon
        elif most[i] > 0 and quiet[slot] - patience[slot] > longest:
            who, longest = i, quiet[slot] - patience[slot]
    return who


@njit(**OPTIONS)
def refit(squares, products, fit, x, seconds, forget, ridge):
    """Enter what one call took, and fit again by least squares, leaning a little (`ridge`) on the fit before."""
    trace = 0.0
    for i in range(3):
        products[i] = forget * products[i] + x[i] * seconds
        for j in range(3):
            squares[i, j] = forget * squares[i, j] + x[i] * x[j]
        trace += squares[i, i]
    right, left = products.copy(), squares.copy()
    for i in range(3):
        left[i, i] += ridge * trace
        right[i] += ridge * trace * max(fit[i], 0.0)
    put(fit, _solved(left, right))


@njit(**OPTIONS)
def _solved(left, right):
    """The solution of three equations, by elimination; `left` is positive definite."""
    for i in range(3):
        for j in range(i + 1, 3):
            factor = left[j, i] / left[i, i]
            for k in range(3):
                left[j, k] -= factor * left[i, k]
            right[j] -= factor * right[i]
    for i in range(2, -1, -1):
        for j in range(i + 1, 3):
            right[i] -= left[i, j] * right[j]
        right[i] /= left[i, i]
    return right


@njit(**OPTIONS)
def learn_pass(rows, taken, sizes, seconds, seen, bound, follows, fades):
    """Learn from a pass that took `taken` seconds.

    Its size follows, others follow less the more is known of them, and none becomes faster than a smaller size.
    """
    ratio = min(max(taken / pass_seconds(float(rows), sizes, seconds), 1 / bound), bound)
    own = np.searchsorted(sizes, rows) if rows <= sizes[-1] else -1
    for i in range(len(seconds)):
        share = 1.0 if i == own else 1 / (1 + seen[i])
        seconds[i] *= ratio ** (follows * share)
    seen *= fades
    if own >= 0:
        seen[own] += 1
    for i in range(1, len(seconds)):
        seconds[i] = max(seconds[i], seconds[i - 1])


@njit(**OPTIONS)
def _between(rows, sizes, seconds):
    """Seconds of a pass of which only the average number of rows is known."""
    last = len(sizes) - 1
    return np.interp(rows, sizes, seconds) + max(rows - sizes[last], 0.0) * (seconds[last] / sizes[last])


@njit(**OPTIONS)
def _drafting(depth, requests, fit, pace):
    """Seconds to draft `depth` levels for so many requests; see DraftCost."""
    return max(fit[0] + depth * (fit[1] + fit[2] * requests), 0.0) * pace


@njit(**OPTIONS)
def begin_drafts(reach, rows, mean_rows, levels, sizes, seconds, fit, pace, gain, given):
    """Mark in `given` which requests may draft, where drafts end early by themselves.

    They are those whose drafts promise most, as many as pay: together at least `gain` times the tokens per second
    without drafts. Returns how many tokens a row and a level must bring to pay for themselves.
    """
    requests, best, total = len(reach), 0, 0.0
    worth = np.empty(requests)
    for i in range(requests):
        worth[i] = reach[i].sum()
    order = np.argsort(-worth)
    rate = requests / _between(rows, sizes, seconds) * gain
    for many in range(1, requests + 1):
        total += worth[order[many - 1]]
        spent = _between(rows + many * mean_rows, sizes, seconds) + _drafting(levels, many, fit, pace)
        if (requests + total) / spent > rate:
            best, rate = many, (requests + total) / spent
    for i in range(requests):
        given[order[i]] = i < best
    at, many = rows + best * mean_rows, max(best, 1)
    row = (_between(at + 2, sizes, seconds) - _between(at, sizes, seconds)) / 2
    level = _drafting(2.0, many, fit, pace) - _drafting(1.0, many, fit, pace)
    return rate * row, rate * level
