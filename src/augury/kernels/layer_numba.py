"""A whole decoder layer of packed matrices on a CPU, in one call.

Its ten steps take as long as Python takes to begin them, where rows are few. Prompts come this way too: code that is
compiled into another function may be vectorised in another way, and a row's bits must not depend on its company.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.kernels.attention_numba import attend_parallel, attend_share
from augury.kernels.digits_numba import STEADY, linear_digits
from augury.kernels.low_rank_numba import add_low_rank
from augury.kernels.rows_numba import gate_rows, norm_rows, rotate_rows
from augury.kernels.unpack import BLOCK

PANEL_ROWS = 128  # rows at a time, so that they stay in the second-level cache
PARALLEL_SIGHT = 1 << 19  # multiply-adds of an attention below which waking threads costs more than they save

_NO_SINKS = np.empty(0, np.float32)


@njit(**STEADY)
def _product(threads, x, matrix, digits, lines, stack, adapters):
    """x times a matrix (tiles, bias) of so many lines, and what each row's adapter adds."""
    rows, (tiles, bias) = x.shape[0], matrix
    out, panels = np.empty((rows, lines), np.float32), -(-rows // PANEL_ROWS)
    for n in range(panels):
        first, last = rows * n // panels, rows * (n + 1) // panels
        linear_digits(threads, x[first:last], tiles, digits, bias, out[first:last])
    add_low_rank(threads, x, stack, adapters, out)
    return out


@njit(**STEADY)
def _attend(threads, q, heads, keys, values, view, block_size, seen, scale, window):
    """See Ops.attend."""
    out = np.empty((q.shape[0], heads * values.shape[2]), np.float32)
    if threads > 1 and seen * out.shape[1] > PARALLEL_SIGHT:
        attend_parallel(threads, q, keys, values, view, block_size, scale, window, 0.0, _NO_SINKS, out)
    else:
        attend_share(0, 1, q, keys, values, view, block_size, scale, window, 0.0, _NO_SINKS, out)
    return out


@njit(**STEADY)
def run_layer(threads, x, residual, matrices, norms, digits, low, rotary, cache, view, write, block_size, seen, shape):
    """The normed input of the next layer, and the residual stream that it is the norm of."""
    qkv_matrix, out_matrix, gate_matrix, down_matrix = matrices
    mlp_norm, next_norm, q_norm, k_norm = norms
    (keys, values), (cos, sin), (adapters, stacks) = cache, rotary, low
    heads, scale, window, eps = shape
    hidden, inner = x.shape[1], down_matrix[0].shape[1] * BLOCK
    width = (heads + 2 * keys.shape[1]) * keys.shape[2]
    qkv = _product(threads, x, qkv_matrix, digits, width, stacks[0], adapters)
    rotate_rows(threads, qkv, heads, view[0], write, cos, sin, keys, values, q_norm, k_norm, eps)
    mixed = _attend(threads, qkv, heads, keys, values, view, block_size, seen, scale, window)
    middle = _product(threads, mixed, out_matrix, digits, hidden, stacks[1], adapters)
    normed = np.empty_like(x)
    norm_rows(threads, middle, residual, mlp_norm, eps, normed)
    gates = _product(threads, normed, gate_matrix, digits, 2 * inner, stacks[2], adapters)
    gated = np.empty((x.shape[0], inner), np.float32)
    gate_rows(threads, gates, gated)
    stream = _product(threads, gated, down_matrix, digits, hidden, stacks[3], adapters)
    following = np.empty_like(x)
    norm_rows(threads, stream, middle, next_norm, eps, following)
    return following, stream
