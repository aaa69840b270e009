"""The small steps of a layer, shared by threads where rows are many.

Each is written so that every operation has one meaning (see ORDERED), because it is compiled into several functions,
and a row's bits must be the same in all of them.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from augury.kernels.fused_numba import add_rms_norm, rotate_and_store, silu_mul
from augury.kernels.numba_options import ORDERED

MANY_ROWS = 32  # from here on threads save more than waking them costs


@njit(**ORDERED)
def rows_of(share, threads, rows):
    """The rows of one thread: first, and one past the last."""
    return rows * share // threads, rows * (share + 1) // threads


@njit(parallel=True, **ORDERED)
def norm_rows(threads, x, residual, weight, eps, out):
    """See add_rms_norm."""
    if x.shape[0] < MANY_ROWS:
        add_rms_norm(x, residual, weight, eps, out)
    else:
        for share in prange(threads):
            first, last = rows_of(np.int64(share), threads, x.shape[0])
            add_rms_norm(x[first:last], residual[first:last], weight, eps, out[first:last])


@njit(parallel=True, **ORDERED)
def gate_rows(threads, gate_up, out):
    """See silu_mul."""
    if out.shape[0] < MANY_ROWS:
        silu_mul(gate_up, out)
    else:
        for share in prange(threads):
            first, last = rows_of(np.int64(share), threads, out.shape[0])
            silu_mul(gate_up[first:last], out[first:last])


@njit(parallel=True, **ORDERED)
def rotate_rows(threads, qkv, heads, positions, write, cos, sin, keys, values, q_norm, k_norm, eps):
    """See rotate_and_store."""
    if qkv.shape[0] < MANY_ROWS:
        rotate_and_store(qkv, heads, positions, write, cos, sin, keys, values, q_norm, k_norm, eps)
    else:
        for share in prange(threads):
            first, last = rows_of(np.int64(share), threads, qkv.shape[0])
            rows, places, targets = qkv[first:last], positions[first:last], write[first:last]
            rotate_and_store(rows, heads, places, targets, cos, sin, keys, values, q_norm, k_norm, eps)
