"""The recurrent layers' operations on a CPU: each group and head by itself, its state read and written once a pass."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

from augury.kernels import threads

threads.keep_compiled_code()  # numba chooses its cache directory when a kernel is declared

from augury.kernels.attention_numba import STEADY, exp  # noqa: E402

PARALLEL = 1 << 18  # multiply-adds below which waking a thread costs more than it saves
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)
_NOTHING = np.empty(0, np.float32)


def convolve(x, taps, weight, bias, activate):
    """See recurrence.convolve."""
    out = torch.empty(taps.shape[1], x.shape[1], dtype=torch.float32)
    added = _NOTHING if bias is None else bias.numpy()
    given = x.contiguous().numpy(), taps.numpy(), weight.numpy(), added, activate, out.numpy()
    threads.in_shares(len(out), out.numel() * len(taps) > PARALLEL, _convolve, *given)
    return out


def scan(memory, course, query, key, value, decay, rate):
    """See recurrence.scan."""
    rows = len(value) - course.front
    heads = memory.shape[1]
    out = torch.zeros(rows, heads, memory.shape[3], dtype=torch.float32)
    own = torch.stack((course.source, course.into, course.save_line, course.save_after, course.again,
                       course.again_first, course.first, course.known, course.nodes))  # fmt: skip
    given = (
        memory.numpy(),
        own.numpy(),
        course.parents.numpy(),
        course.front,
        *(t.contiguous().numpy() for t in (query, key, value, decay)),
        np.empty((0, 0), np.float32) if rate is None else rate.contiguous().numpy(),
        out.numpy(),
    )
    work = len(value) * memory[0].numel() * 4
    threads.in_shares(own.shape[1] * heads, work > PARALLEL, _scan, *given)
    return out


@njit(**STEADY)
def _convolve(begin, end, x, taps, weight, bias, activate, out):
    """Rows begin to end."""
    size, channels = taps.shape[0], x.shape[1]
    for e in range(begin, end):
        for c in range(channels):
            out[e, c] = x[taps[size - 1, e], c] * weight[c, 0]
        for j in range(1, size):
            row = taps[size - 1 - j, e]
            for c in range(channels):
                out[e, c] += x[row, c] * weight[c, j]
        if bias.size > 0:
            for c in range(channels):
                out[e, c] += bias[c]
        if activate:
            for c in range(channels):
                out[e, c] = out[e, c] / (_ONE + exp(-out[e, c]))


@njit(**STEADY)
def _absorb(state, row, h, share, query, key, value, decay, rate, write, read):
    """One row: the state after it, and into `read` what the row's query finds there."""
    keys, values = state.shape
    fade = decay[row, h]
    for j in range(values):
        read[j] = _ZERO
        write[j] = value[row, h, j]
    if rate.size > 0:
        for i in range(keys):
            k = key[row, h // share, i]
            for j in range(values):
                state[i, j] *= fade
                read[j] += k * state[i, j]
        for j in range(values):
            write[j] = (write[j] - read[j]) * rate[row, h]
            read[j] = _ZERO
        fade = _ONE
    for i in range(keys):
        k, q = key[row, h // share, i], query[row, h // share, i]
        for j in range(values):
            state[i, j] = state[i, j] * fade + k * write[j]
            read[j] += q * state[i, j]


@njit(**STEADY)
def _branches(parents, first, nodes):
    """Whether some node goes on from another than the one before it."""
    found = False
    for i in range(nodes):
        found = found or parents[first + i] != i - 1
    return found


@njit(**STEADY)
def _scan(begin, end, memory, own, parents, front, query, key, value, decay, rate, out):
    """Groups and heads begin to end, a head at a time; all rows go through one loop, so none gets other bits."""
    heads, keys, values = memory.shape[1], memory.shape[2], memory.shape[3]
    share = heads // key.shape[1]
    write, read = np.empty(values, np.float32), np.empty(values, np.float32)
    state = np.empty((keys, values), np.float32)
    for place in range(begin, end):
        g, h = place // heads, place % heads
        again, first, nodes = own[4, g], own[6, g], own[8, g]
        certain = again + own[7, g]
        start = first + own[7, g] - front  # the first node
        tree = _branches(parents, start, nodes)
        states = np.empty((nodes + 1 if tree else 0, keys, values), np.float32)
        state[:] = memory[own[0, g], h]
        for t in range(certain + nodes + 1):
            if t == certain:  # what follows is a guess
                memory[own[1, g], h] = state
                if tree:
                    states[0] = state
            if t == certain + nodes:
                break
            if t > certain and tree:
                state[:] = states[parents[start + t - certain] + 1]
            row = own[5, g] + t if t < again else first + t - again
            _absorb(state, row, h, share, query, key, value, decay, rate, write, read)
            if t >= again:
                out[row - front, h] = read
            if t + 1 == own[3, g] and own[2, g] >= 0:
                memory[own[2, g], h] = state
            if t >= certain and tree:
                states[t - certain + 1] = state
