"""The recurrent layers' operations on a CPU: each group, head and block of columns by itself.

A block of the state is read from memory once a pass and written once, after the last row that is certain; for the rows
between it stays in the first-level cache. A row reads

    decay * (S^T query) + (key . query) * write,   write = rate * (value - decay * (S^T key)) under the delta rule

off the state S before it, so the last of the draft's nodes updates nothing, and one walk over the block makes a state
and asks it for the row after.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

from augury.kernels import threads

threads.keep_compiled_code()  # numba chooses its cache directory when a kernel is declared

from augury.kernels.attention_numba import STEADY, exp  # noqa: E402
from augury.kernels.simd_states import (  # noqa: E402
    WIDTH,
    ask_delta,
    ask_plain,
    step_delta,
    step_plain,
    update_state,
)

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
    rows, heads, blocks = len(value) - course.front, memory.shape[1], memory.shape[2]
    assert memory.shape[4] == WIDTH
    out = torch.zeros(rows, heads, value.shape[2], dtype=torch.float32)
    own = torch.stack((course.source, course.into, course.save_line, course.save_after, course.again,
                       course.again_first, course.first, course.known, course.nodes))  # fmt: skip
    given = (
        memory.view(-1).numpy(),
        np.array(memory.shape),
        own.numpy(),
        course.parents.numpy(),
        course.front,
        *(t.contiguous().numpy() for t in (query, key, value, decay)),
        np.empty((0, 0), np.float32) if rate is None else rate.contiguous().numpy(),
        out.numpy(),
    )
    work = len(value) * memory[0].numel() * 4
    threads.in_shares(own.shape[1] * heads * blocks, work > PARALLEL, _scan, *given)
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
def _meet(key, query, row, h):
    """The product of a row's key and query."""
    a, b, c, d = _ZERO, _ZERO, _ZERO, _ZERO
    whole = key.shape[2] // 4 * 4
    for i in range(0, whole, 4):
        a += key[row, h, i] * query[row, h, i]
        b += key[row, h, i + 1] * query[row, h, i + 1]
        c += key[row, h, i + 2] * query[row, h, i + 2]
        d += key[row, h, i + 3] * query[row, h, i + 3]
    for i in range(whole, key.shape[2]):
        a += key[row, h, i] * query[row, h, i]
    return (a + b) + (c + d)


@njit(**STEADY)
def _finish(row, h, share, first, query, key, value, decay, rate, sums, p, write, out, into):
    """What a row writes, and unless `into` is negative what it reads: columns from `first` on, of which some are
    nobody's."""
    fade, columns = decay[row, h], min(WIDTH, value.shape[2] - first)
    for j in range(columns):
        write[j] = value[row, h, first + j]
    for j in range(columns, WIDTH):
        write[j] = _ZERO
    if rate.size > 0:
        speed = rate[row, h]
        for j in range(WIDTH):
            write[j] = (write[j] - fade * sums[p + j]) * speed
    if into >= 0:
        met = _meet(key, query, row, h // share)
        for j in range(columns):
            out[into, h, first + j] = fade * sums[p + WIDTH + j] + met * write[j]


@njit(**STEADY)
def _ask(state, s, keys, key, k, query, sums, p, delta):
    """Ask a state for the row whose key and query begin at k."""
    if delta:
        ask_delta(state, s, state, s, keys, key, k, _ONE, sums, p, query, k, k, sums, p)
    else:
        ask_plain(state, s, state, s, keys, key, k, _ONE, sums, p, query, k, k, sums, p)


@njit(**STEADY)
def _step(source, s, dest, d, keys, key, k, fade, write, query, after, sums, p, delta):
    """Update a state, and ask it for the row at `after`; where that is negative nobody asks."""
    if after < 0:
        update_state(source, s, dest, d, keys, key, k, fade, write, 0, query, k, k, sums, p)
    elif delta:
        step_delta(source, s, dest, d, keys, key, k, fade, write, 0, query, after, after, sums, p)
    else:
        step_plain(source, s, dest, d, keys, key, k, fade, write, 0, query, after, after, sums, p)


@njit(**STEADY)
def _children(parents, first, nodes, eldest, youngest):
    """Of the last known row, in front, and of every node: its first child and its last one, -1 for none."""
    for i in range(nodes + 1):
        eldest[i], youngest[i] = -1, -1
    for i in range(nodes):
        p = parents[first + i] + 1
        youngest[p] = i
        if eldest[p] < 0:
            eldest[p] = i


@njit(**STEADY)
def _scan(begin, end, memory, shape, own, parents, front, query, key, value, decay, rate, out):
    """Groups, heads and blocks begin to end; all rows go through the same loops, so none gets other bits."""
    heads, blocks, keys = shape[1], shape[2], shape[3]
    share, size, delta = heads // key.shape[1], keys * WIDTH, rate.size > 0
    stride = key.shape[1] * keys
    flat_key, flat_query = key.ravel(), query.ravel()
    most = 0
    for g in range(own.shape[1]):
        most = max(most, own[8, g])
    write, sums = np.zeros(WIDTH, np.float32), np.zeros((most + 1) * 2 * WIDTH, np.float32)
    eldest, youngest, places = np.empty(most + 1, np.int64), np.empty(most + 1, np.int64), np.empty(most + 1, np.int64)
    scratch = np.empty((most + 1) * size, np.float32)
    for place in range(begin, end):
        g, h, first_column = place // (heads * blocks), place // blocks % heads, place % blocks * WIDTH
        offset = place % (heads * blocks) * size
        line = heads * blocks * size
        source, into = own[0, g] * line + offset, own[1, g] * line + offset
        again, first, nodes = own[4, g], own[6, g], own[8, g]
        certain = again + own[7, g]
        start = first + own[7, g]  # the first node
        head = h // share * keys
        state, s = memory, source
        if certain == 0:
            memory[into : into + size] = memory[source : source + size]
        for t in range(certain):
            row = own[5, g] + t if t < again else first + t - again
            if t == 0:
                _ask(state, s, keys, flat_key, row * stride + head, flat_query, sums, 0, delta)
            _finish(row, h, share, first_column, query, key, value, decay, rate, sums, 0, write, out,
                    row - front if t >= again else -1)  # fmt: skip
            after = -1
            if t + 1 < certain:
                after = (own[5, g] + t + 1 if t + 1 < again else first + t + 1 - again) * stride + head
            elif nodes > 0:
                after = start * stride + head
            # What is certain passes through the line that it ends in: the one that is read stays as it was.
            _step(state, s, memory, into, keys, flat_key, row * stride + head, decay[row, h], write, flat_query, after,
                  sums, 0, delta)  # fmt: skip
            state, s = memory, into
            if t + 1 == own[3, g] and own[2, g] >= 0:
                saved = own[2, g] * line + offset
                memory[saved : saved + size] = memory[into : into + size]
        if nodes > 0:
            _guess(start, nodes, certain == 0, parents, front, memory, into, scratch, keys, h, share, first_column,
                   query, key, value, decay, rate, flat_key, flat_query, sums, write, eldest, youngest, places, out)  # fmt: skip


@njit(**STEADY)
def _guess(start, nodes, first_asks, parents, front, memory, into, scratch, keys, h, share, column, query, key, value,
           decay, rate, flat_key, flat_query, sums, write, eldest, youngest, places, out):  # fmt: skip
    """The draft's nodes: each goes on from its parent's state, and makes one of its own if it has children."""
    size, stride, head, delta = keys * WIDTH, key.shape[1] * keys, h // share * keys, rate.size > 0
    _children(parents, start - front, nodes, eldest, youngest)
    used = 0
    for i in range(nodes):
        row, above = start + i, parents[start - front + i] + 1
        state, s = (memory, into) if above == 0 else (scratch, places[above])
        k, p = row * stride + head, 2 * WIDTH * i
        if i != eldest[above] or (above == 0 and first_asks):  # else it was asked for when that state was made
            _ask(state, s, keys, flat_key, k, flat_query, sums, p, delta)
        _finish(row, h, share, column, query, key, value, decay, rate, sums, p, write, out, row - front)
        child = eldest[i + 1]
        if child < 0:
            continue
        if above > 0 and youngest[above] == i:  # nobody else goes on from there
            places[i + 1] = s
        else:
            places[i + 1] = used
            used += size
        _step(state, s, scratch, places[i + 1], keys, flat_key, k, decay[row, h], write, flat_query,
              (start + child) * stride + head, sums, 2 * WIDTH * child, delta)  # fmt: skip
