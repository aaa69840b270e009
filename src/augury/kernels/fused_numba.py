"""Norms, rotary embedding with cache write, and the gated activation on a CPU: one pass over the data each.

Each row is reduced by itself in the same order, so neighbours cannot change it. Not threaded: at the sizes where it would
pay, the matrices around these take a hundred times longer.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.kernels.attention_numba import OPTIONS, exp

_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


@njit(**OPTIONS)
def _norm_row(x, weight, eps, out):
    total = _ZERO
    for i in range(x.size):
        total += x[i] * x[i]
    factor = _ONE / np.sqrt(total / np.float32(x.size) + eps)
    for i in range(x.size):
        out[i] = x[i] * factor * weight[i]


@njit(**OPTIONS)
def rms_norm(x, weight, eps, out):
    """See Ops.rms_norm."""
    for r in range(x.shape[0]):
        _norm_row(x[r], weight, eps, out[r])


@njit(**OPTIONS)
def add_rms_norm(x, residual, weight, eps, out):
    """See Ops.add_rms_norm; the sum replaces x."""
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[r, i] += residual[r, i]
        _norm_row(x[r], weight, eps, out[r])


@njit(**OPTIONS)
def silu_mul(gate_up, out):
    """See Ops.silu_mul."""
    half = out.shape[1]
    for r in range(out.shape[0]):
        for i in range(half):
            gate = gate_up[r, i]
            out[r, i] = gate / (_ONE + exp(-gate)) * gate_up[r, half + i]


@njit(**OPTIONS)
def _turn_head(x, norm, eps, cos, sin, out):
    """One head: norm if there is one, rotate the first dimensions, copy the rest."""
    if norm.size > 0:
        _norm_row(x, norm, eps, x)
    half = cos.size
    for i in range(half):
        first, second = x[i], x[half + i]
        out[i] = first * cos[i] - second * sin[i]
        out[half + i] = second * cos[i] + first * sin[i]
    for i in range(2 * half, x.size):
        out[i] = x[i]


@njit(**OPTIONS)
def rotate_and_store(qkv, positions, write, cos, sin, keys, values, q_norm, k_norm, eps, q):
    """See Ops.rotate_and_store; qkv is [R, heads, D] and is used up."""
    heads, kv_heads = q.shape[1], keys.shape[1]
    for r in range(qkv.shape[0]):
        position = min(positions[r], cos.shape[0] - 1)
        c, s, target = cos[position], sin[position], write[r]
        for h in range(heads):
            _turn_head(qkv[r, h], q_norm, eps, c, s, q[r, h])
        for h in range(kv_heads):
            _turn_head(qkv[r, heads + h], k_norm, eps, c, s, keys[target, h])
            values[target, h] = qkv[r, heads + kv_heads + h]
