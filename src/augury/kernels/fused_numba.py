"""Norms, rotary embedding with cache write, and the gated activation on a CPU: one pass over the data each.

Each row is reduced by itself in the same order, so other rows cannot change it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.kernels.exp_numba import exp
from augury.kernels.numba_options import ORDERED
from augury.kernels.simd import gate, squares, turn
from augury.kernels.vectors import LANES

_ONE = np.float32(1.0)


@njit(**ORDERED)
def norm_line(x, r, start, size, weight, eps, out, o0):
    """Norm of x[r, start : start + size] into out[r, o0 : o0 + size], which may be the same place."""
    row, whole = x[r], size // LANES * LANES
    total = squares(row, start, whole)
    for i in range(whole, size):
        total += row[start + i] * row[start + i]
    factor = _ONE / np.sqrt(total / np.float32(size) + eps)
    for i in range(size):
        out[r, o0 + i] = x[r, start + i] * factor * weight[i]


@njit(**ORDERED)
def rms_norm(x, weight, eps, out):
    """See Ops.rms_norm."""
    eps = np.float32(eps)
    for r in range(x.shape[0]):
        norm_line(x, r, 0, x.shape[1], weight, eps, out, 0)


@njit(**ORDERED)
def add_rms_norm(x, residual, weight, eps, out):
    """See Ops.add_rms_norm; the sum replaces x."""
    eps = np.float32(eps)
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[r, i] += residual[r, i]
        norm_line(x, r, 0, x.shape[1], weight, eps, out, 0)


@njit(**ORDERED)
def silu_mul(gate_up, out):
    """See Ops.silu_mul."""
    half, whole = out.shape[1], out.shape[1] // LANES * LANES
    for r in range(out.shape[0]):
        gate(gate_up[r], 0, gate_up[r], half, out[r], 0, whole)
        for i in range(whole, half):
            x = gate_up[r, i]
            out[r, i] = x / (_ONE + exp(-x)) * gate_up[r, half + i]


@njit(**ORDERED)
def _turn_head(x, r, start, dim, norm, eps, cos, sin, position):
    """Normalise one head in place if it has a norm, then rotate its first dimensions."""
    if norm.size > 0:
        norm_line(x, r, start, dim, norm, eps, x, start)
    half, whole = cos.shape[1], cos.shape[1] // LANES * LANES
    turn(x[r], start, start + half, cos[position], 0, sin[position], 0, whole)
    for i in range(whole, half):
        first, second = x[r, start + i], x[r, start + half + i]
        x[r, start + i] = first * cos[position, i] - second * sin[position, i]
        x[r, start + half + i] = second * cos[position, i] + first * sin[position, i]


@njit(**ORDERED)
def rotate_and_store(qkv, heads, positions, write, cos, sin, keys, values, q_norm, k_norm, eps):
    """See Ops.rotate_and_store; queries are left in the first `heads` heads of qkv, keys and values go to the cache."""
    eps = np.float32(eps)
    kv_heads, dim = keys.shape[1], keys.shape[2]
    for r in range(qkv.shape[0]):
        position, target = min(positions[r], cos.shape[0] - 1), write[r]
        for h in range(heads):
            _turn_head(qkv, r, h * dim, dim, q_norm, eps, cos, sin, position)
        for h in range(kv_heads):
            _turn_head(qkv, r, (heads + h) * dim, dim, k_norm, eps, cos, sin, position)
            start, after = (heads + h) * dim, (heads + kv_heads + h) * dim
            for i in range(dim):
                keys[target, h, i] = qkv[r, start + i]
                values[target, h, i] = qkv[r, after + i]
