"""Steps of attention that single rows and tiles share: list keys, turn scores into weights, divide by their sum."""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.kernels.exp_numba import exp
from augury.kernels.numba_options import OPTIONS, ORDERED, STEADY
from augury.kernels.simd_softmax import KEY_BLOCK, soften

_ONE, _TWO, _ZERO = np.float32(1.0), np.float32(2.0), np.float32(0.0)
LOWEST = np.float32(-np.inf)


@njit(**OPTIONS)
def list_keys(tables, slot, block_size, first, context, base, ancestors, position, window, keys):
    """Fill `keys` with the physical cache rows that are visible, in order of position, and count them.

    The list is padded to a multiple of four with its last entry.
    """
    since = position - window + 1 if window > 0 else 0
    if window < 0:
        since = position - position % -window
    count = 0
    c = max(since, first)
    while c < context:
        start = tables[slot, c // block_size] * block_size
        stop = min(context, (c // block_size + 1) * block_size)
        for offset in range(c % block_size, c % block_size + stop - c):
            keys[count] = start + offset
            count += 1
        c = stop
    depth = 0
    node = 0
    while ancestors != 0:
        if ancestors & 1:
            depth += 1
            if base - 1 + depth >= since:
                c = base + node
                keys[count] = tables[slot, c // block_size] * block_size + c % block_size
                count += 1
        ancestors >>= 1
        node += 1
    for pad in range(count, -(-count // 4) * 4):
        keys[pad] = keys[count - 1]
    return count


@njit(**STEADY)
def _bend(scores, count, scale, softcap):
    """Scale scores, then cap them smoothly: softcap * tanh(score / softcap)."""
    for j in range(count):
        scores[j] = softcap * (_ONE - _TWO / (exp(_TWO * scale / softcap * scores[j]) + _ONE))


@njit(**ORDERED)
def weigh(scores, s, count, scale, softcap, tops, totals, t, out, o, size):
    """Turn a row's scores for one block into weights, and rescale its sums so far to the new maximum; see soften.

    Keys past `count` get no weight.
    """
    if softcap > _ZERO:
        _bend(scores[s : s + count], count, scale, softcap)
        scale = _ONE
    for j in range(s + count, s + KEY_BLOCK):
        scores[j] = LOWEST
    shrink = soften(scores, s, scale, tops, totals, t)
    if shrink != _ONE:
        for d in range(o, o + size):
            out[d] *= shrink


@njit(**ORDERED)
def begin(tops, totals, sinks, head):
    """Set the initial largest score and sum of weights of some heads, the first being number `head`; see Ops.attend."""
    for n in range(len(tops)):
        tops[n], totals[n] = LOWEST, _ZERO
    for n in range(len(tops) if sinks.size > 0 else 0):
        tops[n], totals[n] = sinks[head + n], _ONE


@njit(**ORDERED)
def divide(source, s, total, out, o, size):
    """out = source / total; a row that sees nothing stays as it is."""
    factor = _ONE / total if total > _ZERO else _ONE
    for d in range(size):
        out[o + d] = source[s + d] * factor
