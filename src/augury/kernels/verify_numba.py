"""Draw and walk on the CPU: the numba face of kernels/verify.py.

A line reads its own logits, parameters and path only, and is drawn by the same function whether lines run on one thread
or several. numba's disk cache watches this file alone: after editing one of the other verify_numba files in place,
touch this one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from augury.kernels import arrays
from augury.kernels.threads import in_shares
from augury.kernels.verify_numba_edits import Bars, Bias, Lines, Penalties, edited, first_unbarred
from augury.kernels.verify_numba_filters import lowest_allowed
from augury.kernels.verify_numba_race import BLOCK, NOTHING, block_peaks, first_with, race
from augury.kernels.walk_numba import follow
from augury.verify.sampling import Draws, Outcome, SlotSampling
from augury.verify.tree import Draft

PARALLEL_FROM = 1 << 18  # logits to sample from in a call; below this, waking threads costs more than they save
GREEDY_DISCOUNT = 6  # a greedy line costs a sixth of a sampled one


class Filters(NamedTuple):
    """The numbers that even a plain line reads, one per slot."""

    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    min_p: np.ndarray
    seed: np.ndarray


@njit(nogil=True)
def greedy_token(row: np.ndarray) -> int:
    """Lowest token with the highest logit; 0 if no logit is above -inf."""
    peaks = np.empty((len(row) + BLOCK - 1) // BLOCK, np.int32)
    best = block_peaks(row, peaks)
    return first_with(row, peaks, best) if best > NOTHING else 0


@njit(nogil=True)
def sampled_token(row: np.ndarray, slot: int, position: int, filters: Filters) -> int:
    """The token of one row of processed logits, or -1 if none is possible."""
    peaks = np.empty((len(row) + BLOCK - 1) // BLOCK, np.int32)
    best = block_peaks(row, peaks)
    if best <= NOTHING:
        return -1
    temperature = filters.temperature[slot]
    if temperature <= 0:
        return first_with(row, peaks, best)
    floor = lowest_allowed(row, peaks, best, temperature, filters.top_k[slot], filters.top_p[slot], filters.min_p[slot])
    return race(row, peaks, best, temperature, floor, np.uint64(filters.seed[slot]), np.uint64(position))


@njit(nogil=True)
def edited_token(
    logits: np.ndarray, line: int, lines: Lines, filters: Filters, bias: Bias, penalties: Penalties, bars: Bars
) -> int:
    """The token of one line whose slot may edit its logits."""
    slot = lines.slots[line]
    row = edited(logits[line], line, lines, bias, penalties, bars)
    token = sampled_token(row, slot, lines.positions[line], filters)
    if token < 0:
        token = first_unbarred(logits.shape[1], line, lines, bias)
    return token if token >= 0 else greedy_token(logits[line])


@njit(cache=True, nogil=True)
def greedy_lines(first: int, last: int, logits: np.ndarray, chosen: np.ndarray) -> None:
    """Greedy tokens of plain lines first .. last-1."""
    for line in range(first, last):
        chosen[line] = greedy_token(logits[line])


@njit(cache=True, nogil=True)
def plain_lines(first: int, last: int, logits: np.ndarray, lines: Lines, filters: Filters, chosen: np.ndarray) -> None:
    """Tokens of lines first .. last-1, whose logits are not edited."""
    for line in range(first, last):
        chosen[line] = max(0, sampled_token(logits[line], lines.slots[line], lines.positions[line], filters))


@njit(cache=True, nogil=True)
def edited_lines(
    first: int,
    last: int,
    logits: np.ndarray,
    lines: Lines,
    filters: Filters,
    bias: Bias,
    penalties: Penalties,
    bars: Bars,
    chosen: np.ndarray,
) -> None:
    """Tokens of lines first .. last-1, whose logits may be edited."""
    for line in range(first, last):
        chosen[line] = edited_token(logits, line, lines, filters, bias, penalties, bars)


def array_of(tensor: Tensor | None, dtype: torch.dtype = torch.float32) -> np.ndarray:
    """The tensor's memory, or an empty table."""
    return torch.empty(0, 0, dtype=dtype).numpy() if tensor is None else arrays.array_of(tensor)


def lines_of(draws: Draws) -> Lines:
    """The draws as arrays."""
    bits, rows = (None, draws.slots[:0]) if draws.masks is None else (draws.masks.bits, draws.masks.rows)
    whole = (draws.slots, draws.positions, draws.tokens, draws.parents, draws.history)
    return Lines(*(array_of(t) for t in whole), array_of(bits, torch.int32), array_of(rows))


def filters_of(s: SlotSampling) -> Filters:
    """The numbers that even a plain line reads."""
    return Filters(*(array_of(t) for t in (s.temperature, s.top_k, s.top_p, s.min_p, s.seed)))


def edits_of(s: SlotSampling) -> tuple[Bias, Penalties, Bars]:
    """The logit edits as arrays."""
    penalties = Penalties(
        array_of(s.penalized),
        array_of(s.repetition),
        array_of(s.frequency),
        array_of(s.presence),
        array_of(s.counts, torch.int32),
        array_of(s.in_prompt, torch.bool),
    )
    bars = Bars(array_of(s.min_length), array_of(s.stops), array_of(s.bad_words))
    return Bias(array_of(s.biased), array_of(s.bias)), penalties, bars


def draw(logits: Tensor, draws: Draws, sampling: SlotSampling) -> Tensor:
    """The target's token for every line, int64 [L]; see kernels.verify.draw. Padding lines draw 0."""
    rows = array_of(logits)
    chosen = np.zeros(len(rows), np.int64)
    quick = draws.greedy and draws.plain
    work = draws.count * rows.shape[1] // (GREEDY_DISCOUNT if quick else 1)
    if quick:
        in_shares(draws.count, work >= PARALLEL_FROM, greedy_lines, rows, chosen)
        return arrays.with_array(chosen)
    lines, filters = lines_of(draws), filters_of(sampling)
    if draws.plain:
        in_shares(draws.count, work >= PARALLEL_FROM, plain_lines, rows, lines, filters, chosen)
    else:
        edits = edits_of(sampling)
        in_shares(draws.count, work >= PARALLEL_FROM, edited_lines, rows, lines, filters, *edits, chosen)
    return arrays.with_array(chosen)


@njit(cache=True, nogil=True)
def walk_groups(
    drawn: np.ndarray,
    first: np.ndarray,
    tokens: np.ndarray,
    parents: np.ndarray,
    count: np.ndarray,
    emitted: np.ndarray,
    path: np.ndarray,
    accepted: np.ndarray,
) -> None:
    """Follow each group's drawn tokens down its tree; `accepted` is -1 for an inactive group."""
    for g in range(len(first)):
        if first[g] < 0:
            accepted[g] = -1
            continue
        accepted[g] = follow(drawn[first[g] :], tokens[g, : count[g]], parents[g], emitted[g], path[g])


def walk(drawn: Tensor, first: Tensor, draft: Draft) -> Outcome:
    """The accepted path of every group; see kernels.verify.walk."""
    groups, nodes = draft.tokens.shape
    emitted, path = drawn.new_full((groups, nodes + 1), -1), drawn.new_full((groups, nodes), -1)
    accepted = drawn.new_empty(groups)
    walk_groups(
        array_of(drawn),
        array_of(first),
        array_of(draft.tokens),
        array_of(draft.parents),
        array_of(draft.count),
        emitted.numpy(),
        path.numpy(),
        accepted.numpy(),
    )
    return Outcome(emitted, accepted + 1, accepted.clamp(min=0), path)
