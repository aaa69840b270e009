"""A whole draft of a recurrent head on a CPU, in one call: first the tokens it has not read, then one draft token
after another.

A draft token takes a third of a millisecond, and Python would take as much again: a dozen small calls, each of them
cold after the target's weights have gone through the caches. The meaning is that of drafters/recurrent.py and of
model/heads/eagle3.py. Tuples are flat and not named, because numba inspects flat arguments in a tenth of the time.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.kernels.confidence_numba import note_guesses
from augury.kernels.digits_numba import STEADY, linear_digits
from augury.kernels.draft_rows_numba import lay_fresh, lay_level
from augury.kernels.fused_numba import norm_line
from augury.kernels.layer_numba import run_layers
from augury.kernels.layout_numba import ROW_FIELDS
from augury.kernels.room_numba import put
from augury.kernels.streams_numba import NO_MASK, gather
from augury.kernels.tiles_numba import gather_lines
from augury.kernels.verify_numba import greedy_token


@njit(**STEADY)
def _unread(groups, carried, longest, budget, begin, count):
    """Fill in what each group may draft and which tokens the head has not read; returns how many rows these take."""
    slots, lengths, most, start, num_new_tokens, _, path = groups
    rows = 0
    for g in range(len(slots)):
        track, held, fits = num_new_tokens[g], carried[slots[g]], lengths[g] <= longest
        for node in path[g]:
            track += node >= 0
        budget[g] = max(0, min(most[g], longest - lengths[g])) if fits else 0
        begin[g], count[g] = start[g] + 1 - held, track + held if fits and track > 0 else 0
        rows += count[g]
    return max(1, rows)


@njit(**STEADY)
def _combine(threads, streams, combine, out):
    """fc over the streams side by side, each normed first if there are norms."""
    tiles, digits, bias, norms, eps = combine
    if norms[0].size > 0:
        hidden, normed = norms[0].size, np.empty_like(streams)
        for r in range(len(streams)):
            for n in range(len(norms)):
                norm_line(streams, r, n * hidden, hidden, norms[n], eps, normed, n * hidden)
        linear_digits(threads, normed, tiles, digits, bias, out)
    else:
        linear_digits(threads, streams, tiles, digits, bias, out)


@njit(**STEADY)
def _forward(threads, rows, hidden, words, norms, layers, block_tables, shape, flags):
    """The layers' normed output and residual stream for rows of tokens, each with a hidden state."""
    tiles, floats, parts = words
    token_norm, hidden_norm, eps = norms
    table, matrices, layer_norms, digits, stacks, rotary, cache = layers
    width, (shift, normed_residual) = hidden.shape[1], flags
    token, first = np.empty(hidden.shape, np.float32), np.empty((len(hidden), 2 * width), np.float32)
    gather_lines(tiles, floats, rows[0], parts, token)
    for r in range(len(hidden)):
        norm_line(token, r, 0, width, token_norm, eps, first, 0)
        norm_line(hidden, r, 0, width, hidden_norm, eps, first, width)
    residual = np.ascontiguousarray(first[:, width:]) if normed_residual else hidden
    view = rows[1], rows[2], rows[3], rows[4], rows[5], block_tables, np.full(1, shift, np.int64)
    adapters, kept = np.empty(0, np.int64), np.empty((0, 0, 0), np.float32)  # none
    return run_layers(
        threads, first, residual, table, matrices, layer_norms, digits, adapters, stacks, rotary, cache, view, rows[6],
        shape, kept,
    )  # fmt: skip


@njit(**STEADY)
def _picked(x, wanted):
    out = np.empty((len(wanted), x.shape[1]), np.float32)
    for n in range(len(wanted)):
        put(out[n], x[wanted[n]])
    return out


@njit(**STEADY)
def draft_chains(
    threads, groups, carried, streams, block_ends, tables, combine, words, norms, layers, scores, shape, limits,
    judged, judges, tokens, budget,
):  # fmt: skip
    """Draft for every group; returns how many forward passes the head took.

    `groups` are slots, lengths, most nodes, start, num_new_tokens, row_begin and path of DraftInput; `streams` its
    features. `tokens` [G, K] and `budget` [G] take what is drafted, and `judged` is what note_guesses takes.
    """
    slots, lengths, _, start, num_new_tokens, row_begin, path = groups
    longest, shift, normed_residual, normed_output = limits
    (history, block_tables), flags, block_size = tables, (shift, normed_residual), shape[0]
    tiles, digits, bias, targets = scores
    begin, count, wanted = np.empty_like(slots), np.empty_like(slots), np.empty_like(slots)
    size = _unread(groups, carried, longest, budget, begin, count)
    rows, places = np.empty((ROW_FIELDS, size), np.int64), np.empty((3, size), np.int64)
    lay_fresh(slots, begin, count, history, block_tables, block_size, shift, 0, 0, rows, places, wanted)
    features = np.empty((size, block_ends.shape[1]), np.float32)
    gather(
        streams, places, row_begin, start, num_new_tokens, path, count, _held(slots, carried), slots, block_tables,
        block_size, block_ends, NO_MASK, features,
    )  # fmt: skip
    for slot in slots:
        carried[slot] = 0
    hidden = np.empty((size, len(norms[0])), np.float32)
    _combine(threads, features, combine, hidden)
    final, stream = _forward(threads, rows, hidden, words, norms, layers, block_tables, shape, flags)
    steps = budget.max()
    if steps > 0:
        final, hidden = _picked(final, wanted), _picked(stream, wanted)
    logits, level = np.empty((len(slots), len(targets)), np.float32), np.empty((ROW_FIELDS, len(slots)), np.int64)
    for i in range(steps):
        linear_digits(threads, final, tiles, digits, bias, logits)
        for g in range(len(slots)):
            tokens[g, i] = targets[greedy_token(logits[g])]
        if judges and not note_guesses(logits, i, slots, budget, *judged):
            return i + 1
        if i + 1 < steps:
            guesses = tokens[:, i : i + 1].copy()
            lay_level(
                slots, lengths, budget, guesses, guesses, block_tables, block_size, 0, i, i + 2, shift, False, level
            )
            before = final if normed_output else hidden
            final, hidden = _forward(threads, level, before, words, norms, layers, block_tables, shape, flags)
    return steps


@njit(**STEADY)
def _held(slots, carried):
    """Each group's flag in `carried`: 1 where its first row continues a block found in the prefix cache."""
    held = np.empty_like(slots)
    for g in range(len(slots)):
        held[g] = carried[slots[g]]
    return held
