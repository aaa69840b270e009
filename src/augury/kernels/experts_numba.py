"""Mixtures of experts on a CPU: rows are gathered by expert, and each expert's matrices are read once for all of them.

Two parallel calls per layer, whatever the number of experts: every thread has some columns of each. A row's sums are
those of matrix_numba.py, whose order does not depend on how many rows an expert has.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from augury.kernels.exp_numba import exp
from augury.kernels.matrix_numba import share_of_product
from augury.kernels.numba_options import OPTIONS, STEADY

PANEL_ROWS = 128  # rows at a time, so that they stay in the second-level cache

_ZERO = np.float32(0.0)


@njit(**STEADY)
def route(logits, normalise, shares, experts):
    """See Ops.route: into shares [R, k] and experts [R, k]."""
    rows, count = logits.shape
    likely = np.empty(count, np.float32)
    for r in range(rows):
        highest = logits[r, 0]
        for e in range(1, count):
            highest = max(highest, logits[r, e])
        total = _ZERO
        for e in range(count):
            likely[e] = exp(logits[r, e] - highest)
            total += likely[e]
        chosen = _ZERO
        for place in range(experts.shape[1]):
            best = 0
            for e in range(1, count):
                if likely[e] > likely[best] or likely[best] < _ZERO:
                    best = e
            experts[r, place], shares[r, place] = best, likely[best]
            chosen += likely[best]
            likely[best] = np.float32(-1.0)
        whole = chosen if normalise else total
        for place in range(experts.shape[1]):
            shares[r, place] /= whole


@njit(**OPTIONS)
def gather(x, experts, begins, order, out):
    """Gather rows of x in the order of their experts: out [R * k, H].

    `order` [R * k] takes the pair of row and place that each is, begins [E + 1] where each expert's rows begin.
    """
    flat = experts.reshape(-1)
    begins[:] = 0
    for pair in range(flat.size):
        begins[flat[pair] + 1] += 1
    for e in range(begins.size - 1):
        begins[e + 1] += begins[e]
    following = begins.copy()
    for pair in range(flat.size):
        at = following[flat[pair]]
        following[flat[pair]] += 1
        order[at] = pair
        for i in range(x.shape[1]):
            out[at, i] = x[pair // experts.shape[1], i]


@njit(**OPTIONS)
def products_share(thread, threads, x, weights, begins, out):
    """One thread's share of each expert's rows of x times its matrix."""
    for e in range(weights.shape[0]):
        first, rows = begins[e], begins[e + 1] - begins[e]
        panels = -(-rows // PANEL_ROWS)
        for panel in range(panels):
            a, b = first + rows * panel // panels, first + rows * (panel + 1) // panels
            share_of_product(thread, threads, x[a:b], weights[e], out[a:b])


@njit(parallel=True, **OPTIONS)
def products_parallel(threads, x, weights, begins, out):
    """All shares of the products in parallel."""
    for share in prange(threads):
        products_share(np.int64(share), threads, x, weights, begins, out)


@njit(**STEADY)
def join(made, order, shares, out):
    """Add up the outputs of each row's experts, times their shares, in the order of their places."""
    places = shares.shape[1]
    line = np.empty(order.size, np.int64)
    for i in range(order.size):
        line[order[i]] = i
    for r in range(out.shape[0]):
        for i in range(out.shape[1]):
            out[r, i] = _ZERO
        for place in range(places):
            share, at = shares[r, place], line[r * places + place]
            for i in range(out.shape[1]):
                out[r, i] += share * made[at, i]
