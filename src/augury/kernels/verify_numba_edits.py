"""The processed logits of one line on the CPU: bias, penalties, bars, grammar, with the history of its own path."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

NEGATIVE_INFINITY = np.float32(-np.inf)
ZERO = np.float32(0)
BEFORE_START = -2  # stands where the history has no token; no word holds it
UNUSED = -1  # pads stops and bad words
WORD_BITS = 32  # tokens in a word of a grammar's mask
NONE_ALLOWED, ALL_ALLOWED = np.int32(0), np.int32(-1)  # words of a mask


class Lines(NamedTuple):
    """verify.sampling.Draws as arrays."""

    slots: np.ndarray
    positions: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray
    history: np.ndarray
    mask_bits: np.ndarray
    mask_rows: np.ndarray  # empty where no line has a grammar


class Penalties(NamedTuple):
    """Penalties of every slot; a table that does not exist is empty."""

    penalized: np.ndarray
    repetition: np.ndarray
    frequency: np.ndarray
    presence: np.ndarray
    counts: np.ndarray
    in_prompt: np.ndarray


class Bars(NamedTuple):
    """Banned tokens by slot: early stops and the ends of bad words."""

    min_length: np.ndarray
    stops: np.ndarray
    bad_words: np.ndarray


class Bias(NamedTuple):
    """The biases that are added to logits, by slot; the table may be empty."""

    biased: np.ndarray
    bias: np.ndarray


@njit(nogil=True, forceinline=True, error_model="numpy")
def penalize(logit: float, count: int, prompted: bool, repetition: float, frequency: float, presence: float) -> float:
    """One token's logit after its penalties, in vLLM's order."""
    if prompted or count > 0:
        logit = logit / repetition if logit > ZERO else logit * repetition
    logit = logit - frequency * np.float32(count)
    return logit - presence if count > 0 else logit


@njit(nogil=True)
def path_count(token: int, line: int, lines: Lines) -> int:
    """How often a token stands on the line's path, the root excluded."""
    count = 0
    while lines.parents[line] >= 0:
        count += lines.tokens[line] == token
        line = lines.parents[line]
    return count


@njit(nogil=True)
def penalized_logit(logit: float, token: int, slot: int, extra: int, penalties: Penalties) -> float:
    """`penalize` with the slot's numbers and `extra` occurrences on the path."""
    count = extra + (penalties.counts[slot, token] if len(penalties.counts) else 0)
    prompted = penalties.in_prompt[slot, token] if len(penalties.in_prompt) else False
    rates = penalties.repetition[slot], penalties.frequency[slot], penalties.presence[slot]
    return penalize(logit, count, prompted, rates[0], rates[1], rates[2])


@njit(nogil=True)
def apply_penalties(row: np.ndarray, line: int, lines: Lines, penalties: Penalties) -> None:
    """Penalise the known history in one sweep, then redo the few tokens that the path adds to."""
    slot = lines.slots[line]
    before = np.empty(lines.positions[line] + 1, np.float32)  # a path is shorter than its text
    steps, node = 0, line
    while lines.parents[node] >= 0:
        if 0 <= lines.tokens[node] < len(row):
            before[steps] = row[lines.tokens[node]]
        steps += 1
        node = lines.parents[node]
    for token in range(len(row)):
        row[token] = penalized_logit(row[token], token, slot, 0, penalties)
    steps, node = 0, line
    while lines.parents[node] >= 0:
        token = lines.tokens[node]
        if 0 <= token < len(row):
            row[token] = penalized_logit(before[steps], token, slot, path_count(token, line, lines), penalties)
        steps += 1
        node = lines.parents[node]


@njit(nogil=True)
def follows(word: np.ndarray, line: int, lines: Lines) -> bool:
    """Whether the line's history, its path included, ends with all of a left-padded word but its last token."""
    node, at = line, lines.positions[line] - 1
    for i in range(len(word) - 2, -1, -1):
        if word[i] == UNUSED:
            break
        if lines.parents[node] >= 0:
            token = lines.tokens[node]
            node = lines.parents[node]
        else:
            token = lines.history[lines.slots[line], at] if at >= 0 else BEFORE_START
        if token != word[i]:
            return False
        at -= 1
    return True


@njit(nogil=True)
def apply_bars(row: np.ndarray, line: int, lines: Lines, bars: Bars) -> None:
    """Bar early stops and the last tokens of bad words."""
    slot = lines.slots[line]
    if lines.positions[line] < bars.min_length[slot]:
        for i in range(bars.stops.shape[1]):
            token = bars.stops[slot, i]
            if 0 <= token < len(row):
                row[token] = NEGATIVE_INFINITY
    for w in range(bars.bad_words.shape[1]):
        token = bars.bad_words[slot, w, -1]
        if 0 <= token < len(row) and follows(bars.bad_words[slot, w], line, lines):
            row[token] = NEGATIVE_INFINITY


@njit(nogil=True)
def mask_row(line: int, lines: Lines) -> int:
    """Which mask is the line's, or -1."""
    return lines.mask_rows[line] if len(lines.mask_rows) else -1


@njit(nogil=True)
def apply_mask(row: np.ndarray, words: np.ndarray) -> None:
    """Bar what a grammar does not allow; most words of most masks allow all of their tokens or none."""
    for w in range((len(row) + WORD_BITS - 1) // WORD_BITS):
        word = words[w]
        if word == ALL_ALLOWED:
            continue
        part = row[w * WORD_BITS : (w + 1) * WORD_BITS]
        if word == NONE_ALLOWED:
            part[:] = NEGATIVE_INFINITY
            continue
        for i in range(len(part)):
            if not (word >> i) & 1:
                part[i] = NEGATIVE_INFINITY


@njit(nogil=True)
def edited(logits: np.ndarray, line: int, lines: Lines, bias: Bias, penalties: Penalties, bars: Bars) -> np.ndarray:
    """A copy of a line's logits with bias, penalties, bars and grammar applied."""
    line = np.int64(line)  # prange counts in unsigned integers, which do not mix with the -1 of a root's parent
    row = np.empty_like(logits)
    slot = lines.slots[line]
    biased = bias.biased[slot] and len(bias.bias) > 0
    for token in range(len(row)):
        row[token] = logits[token] + bias.bias[slot, token] if biased else logits[token]
    if penalties.penalized[slot]:
        apply_penalties(row, line, lines, penalties)
    apply_bars(row, line, lines, bars)
    mask = mask_row(line, lines)
    if mask >= 0:
        apply_mask(row, lines.mask_bits[mask])
    return row


@njit(nogil=True)
def first_unbarred(vocab: int, line: int, lines: Lines, bias: Bias) -> int:
    """Lowest token that bias and grammar leave possible, else the grammar's lowest, else -1."""
    slot, mask = lines.slots[line], mask_row(line, lines)
    biased = len(bias.bias) > 0 and bias.biased[slot]
    lowest = -1
    for token in range(vocab):
        if mask >= 0 and not (lines.mask_bits[mask, token // WORD_BITS] >> (token % WORD_BITS)) & 1:
            continue
        if not biased or bias.bias[slot, token] > NEGATIVE_INFINITY:
            return token
        lowest = token if mask >= 0 and lowest < 0 else lowest
    return lowest
