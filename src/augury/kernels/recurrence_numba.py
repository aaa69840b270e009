"""The recurrent layers' operations on a CPU: each group, head and block of columns by itself.

A block of the state is read from memory once a pass and written once, after the last row that is certain; for the rows
between it stays in the first-level cache. A row's output is

    decay * (S^T query) + (key . query) * write,   write = rate * (value - decay * (S^T key)) under the delta rule

of the state S before it, so a draft node without children updates nothing, and one walk over the block makes a state
and takes from it the sums for the row after ("asks" it for that row).
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit

from augury.kernels import threads

threads.keep_compiled_code()  # numba chooses its cache directory when a kernel is declared

from augury.kernels.exp_numba import exp  # noqa: E402
from augury.kernels.numba_options import STEADY  # noqa: E402
from augury.kernels.room_numba import put  # noqa: E402
from augury.kernels.simd_states import (  # noqa: E402
    WIDTH,
    ask_delta,
    ask_plain,
    end_delta,
    end_plain,
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
    heads, blocks = memory.shape[1], memory.shape[2]
    if course.steps is None:
        course.steps = _plan(course)
    steps, edges = course.steps
    values, columns = value.shape[2], blocks * WIDTH
    if values < columns:
        value = F.pad(value, (0, columns - values))
    rows = len(value) - course.front
    out = torch.empty(rows + 1, heads, columns)  # the last line takes what is not needed
    query, key, value, decay = (t.contiguous().numpy() for t in (query, key, value, decay))
    delta = rate is not None
    rate = rate.contiguous().numpy() if delta else decay
    given = delta, steps, edges, memory.numpy(), query, key, _meets(key, query), value, decay, rate, out.numpy()
    work = len(value) * memory[0].numel() * 4
    threads.in_shares((len(edges) - 1) * heads * blocks, work > PARALLEL, _walk, *given)
    return out[:rows, :, :values]


def _plan(course):
    """The rows of every group in their order, the same for all heads and layers."""
    saved = (course.source, course.into, course.save_line, course.save_after)
    read = (course.again, course.again_first, course.first, course.known, course.nodes)
    own = torch.stack(saved + read).numpy()
    count = np.maximum(1, own[4] + own[7]) + own[8]  # a state without a certain row is copied, which is a step as well
    edges = np.concatenate((np.zeros(1, np.int64), np.cumsum(count)))
    steps = np.full((edges[-1], len(STEP)), -1)
    rows = len(course.parents)
    for g in range(own.shape[1]):
        _plan_group(own[:, g], course.parents.numpy(), course.front, rows, steps[edges[g] : edges[g + 1]])
    return steps, edges


@njit(**STEADY)
def _convolve(begin, end, x, taps, weight, bias, activate, out):
    """Convolve rows begin .. end-1."""
    size, channels = taps.shape[0], x.shape[1]
    for e in range(begin, end):
        line, given, factor = out[e], x[taps[size - 1, e]], weight[0]
        for c in range(channels):
            line[c] = given[c] * factor[c]
        for j in range(1, size):
            given, factor = x[taps[size - 1 - j, e]], weight[j]
            for c in range(channels):
                line[c] += given[c] * factor[c]
        if bias.size > 0:
            for c in range(channels):
                line[c] += bias[c]
        if activate:
            for c in range(channels):
                line[c] = line[c] / (_ONE + exp(-line[c]))


# Fields of a step of a plan. A place is a line of the memory if it is not negative, -1 for nowhere, and below that a
# block of the scratch.
STEP = ("row", "source", "dest", "asks", "after", "sums", "after's sums", "out", "save")
ROW, SOURCE, DEST, ASKS, AFTER, SUMS, AFTER_SUMS, OUT, SAVE = range(len(STEP))
NOWHERE, SCRATCH = -1, -2


@njit(**STEADY)
def _plan_group(own, parents, front, rows, steps):
    """Plan one group: certain rows keep their state in the line they end in, nodes in scratch; another source stays."""
    again, first, known, nodes = own[4], own[6], own[7], own[8]
    certain, state = again + known, own[0]
    if certain == 0:
        steps[0, SOURCE], steps[0, DEST] = own[0], own[1]
        state = own[1]
    for t in range(certain):
        step = steps[t]
        step[ROW] = own[5] + t if t < again else first + t - again
        step[SOURCE], step[DEST], state = state, own[1], own[1]
        step[ASKS], step[SUMS], step[AFTER_SUMS] = t == 0, 0, 0
        step[OUT] = rows if t < again else first + t - again - front
        if t + 1 < certain or nodes > 0:
            step[AFTER] = own[5] + t + 1 if t + 1 < again else first + t + 1 - again
        if t + 1 == own[3]:
            step[SAVE] = own[2]
    _plan_nodes(first + known, nodes, parents, front, state, certain == 0, steps[max(1, certain) :])


@njit(**STEADY)
def _plan_nodes(start, nodes, parents, front, state, nobody_asked, steps):
    """Plan a group's nodes: each continues from its parent's state, and makes one of its own if it has children."""
    eldest, youngest = np.full(nodes + 1, -1), np.full(nodes + 1, -1)
    above = parents[start - front : start - front + nodes] + 1
    for i in range(nodes - 1, -1, -1):
        eldest[above[i]] = i
    for i in range(nodes):
        youngest[above[i]] = i
    used = 0
    for i in range(nodes):
        step, parent = steps[i], above[i]
        step[ROW], step[OUT], step[SUMS] = start + i, start + i - front, i
        step[SOURCE] = state if parent == 0 else steps[parent - 1, DEST]
        # The sums for the eldest were taken when its parent's state was made.
        step[ASKS] = i != eldest[parent] or (parent == 0 and nobody_asked)
        child = eldest[i + 1]
        if child < 0:
            continue
        step[AFTER], step[AFTER_SUMS] = start + child, child
        if parent > 0 and youngest[parent] == i:  # no other row continues from there
            step[DEST] = step[SOURCE]
        else:
            step[DEST] = SCRATCH - used
            used += 1


@njit(**STEADY)
def _meets(key, query):
    """The dot product of every row's key and query, [E, key heads]."""
    met = np.empty(key.shape[:2], np.float32)
    whole = key.shape[2] // 4 * 4
    for row in range(key.shape[0]):
        for h in range(key.shape[1]):
            a, b, c, d = _ZERO, _ZERO, _ZERO, _ZERO
            for i in range(0, whole, 4):
                a += key[row, h, i] * query[row, h, i]
                b += key[row, h, i + 1] * query[row, h, i + 1]
                c += key[row, h, i + 2] * query[row, h, i + 2]
                d += key[row, h, i + 3] * query[row, h, i + 3]
            for i in range(whole, key.shape[2]):
                a += key[row, h, i] * query[row, h, i]
            met[row, h] = (a + b) + (c + d)
    return met


@njit(inline="always", **STEADY)
def _ask(delta, state, s, keys, key, query, k, sums, p):
    """Take from a state the sums for the row whose key and query begin at k."""
    if delta:
        ask_delta(state, s, state, s, keys, key, k, _ONE, sums, p, query, k, k, sums, p)
    else:
        ask_plain(state, s, state, s, keys, key, k, _ONE, sums, p, query, k, k, sums, p)


@njit(inline="always", **STEADY)
def _step(delta, state, s, into, d, keys, key, k, fade, write, query, after, sums, p):
    """Make the state after a row, and take from it the sums for the row at `after`, unless that is negative."""
    if after < 0:
        update_state(state, s, into, d, keys, key, k, fade, write, 0, query, k, k, sums, p)
    elif delta:
        step_delta(state, s, into, d, keys, key, k, fade, write, 0, query, after, after, sums, p)
    else:
        step_plain(state, s, into, d, keys, key, k, fade, write, 0, query, after, after, sums, p)


@njit(**STEADY)
def _walk(begin, end, delta, steps, edges, memory, query, key, met, value, decay, rate, out):
    """Run items (group, head, block) begin .. end-1; all rows go through the same loops, so none gets other bits."""
    heads, blocks, keys, key_heads = memory.shape[1], memory.shape[2], memory.shape[3], key.shape[1]
    share, size, columns, line = heads // key_heads, keys * WIDTH, blocks * WIDTH, heads * blocks * keys * WIDTH
    most = 1
    for n in range(len(steps)):
        most = max(most, steps[n, SUMS] + 1)
    write, sums = np.empty(WIDTH, np.float32), np.empty(most * 2 * WIDTH, np.float32)
    stored, scratch = memory.ravel(), np.empty(most * size, np.float32)
    flat_key, flat_query, flat_value, flat_out = key.ravel(), query.ravel(), value.ravel(), out.ravel()
    for place in range(begin, end):
        g, h, offset = place // (heads * blocks), place // blocks % heads, place % (heads * blocks) * size
        column, kh = place % blocks * WIDTH, h // share
        for n in range(edges[g], edges[g + 1]):
            row, source, dest = steps[n, ROW], steps[n, SOURCE], steps[n, DEST]
            state, s = (stored, source * line + offset) if source >= 0 else (scratch, (SCRATCH - source) * size)
            into, d = (stored, dest * line + offset) if dest >= 0 else (scratch, (SCRATCH - dest) * size)
            if row < 0:
                put(into[d : d + size], state[s:])
                continue
            k, p, fade = (row * key_heads + kh) * keys, steps[n, SUMS] * 2 * WIDTH, decay[row, h]
            if steps[n, ASKS]:
                _ask(delta, state, s, keys, flat_key, flat_query, k, sums, p)
            o, v = (steps[n, OUT] * heads + h) * columns + column, (row * heads + h) * columns + column
            if delta:
                end_delta(sums, p, flat_value, v, fade, rate[row, h], met[row, kh], write, 0, flat_out, o)
            else:
                end_plain(sums, p, flat_value, v, fade, fade, met[row, kh], write, 0, flat_out, o)
            if dest == NOWHERE:
                continue
            after = (steps[n, AFTER] * key_heads + kh) * keys if steps[n, AFTER] >= 0 else -1
            p = steps[n, AFTER_SUMS] * 2 * WIDTH
            _step(delta, state, s, into, d, keys, flat_key, k, fade, write, flat_query, after, sums, p)
            if steps[n, SAVE] >= 0:
                saved = steps[n, SAVE] * line + offset
                put(stored[saved : saved + size], into[d:])
