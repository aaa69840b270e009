"""n-gram lookup: find the longest suffix of a text that also occurs earlier in it, and what followed it there.

The rule: the longest n between min_n and max_n; of several matches the earliest (vLLM V1's rule) or the latest; a
match may overlap the suffix but must end before the last token.

Each slot has one hash table per n, from an n-gram to the position of its last token. A step adds only new tokens
and makes one lookup per n, so its cost does not grow with the text. A table holds positions, not hashes: a match is
compared token by token, so a hash collision cannot produce a wrong draft.
"""

from __future__ import annotations

import numpy as np
from numba import njit

OPTIONS = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy"}

EMPTY = -1
OFFSET, CAPACITY, INDEXED, LENGTH, PRINT = range(5)  # columns of a slot's line in `state`
_FACTOR = np.int64(-7046029254386353131)  # odd, with well-mixed bits (2**64 over the golden ratio)
_PRINTED = 8  # tokens at the end of a text that identify it


@njit(**OPTIONS)
def _home(key: int, n: int, capacity: int) -> int:
    """The table line where the search for a key begins; capacity is a power of two."""
    mixed = (key + n) * _FACTOR
    mixed ^= mixed >> 32
    mixed *= _FACTOR
    return (mixed ^ (mixed >> 29)) & (capacity - 1)


@njit(**OPTIONS)
def _locate(text: np.ndarray, end: int, n: int, key: int, table: np.ndarray, capacity: int) -> int:
    """The table's line for the n-gram that ends at text[end]: the one that holds it, or the empty one it belongs in."""
    line = _home(key, n, capacity)
    while table[line] != EMPTY:
        place = table[line]
        same = 0
        while same < n and text[place - same] == text[end - same]:
            same += 1
        if same == n:
            break
        line = (line + 1) & (capacity - 1)
    return line


@njit(**OPTIONS)
def _insert(text: np.ndarray, start: int, stop: int, tables: np.ndarray, min_n: int, latest: bool) -> None:
    """Enter every n-gram that ends at start..stop-1; tables is [number of n, capacity]."""
    capacity = tables.shape[1]
    max_n = min_n + tables.shape[0] - 1
    for end in range(start, stop):
        key, power = np.int64(0), np.int64(1)
        for n in range(1, min(max_n, end + 1) + 1):
            key += (text[end - n + 1] + 1) * power
            power *= _FACTOR
            if n >= min_n:
                table = tables[n - min_n]
                line = _locate(text, end, n, key, table, capacity)
                if latest or table[line] == EMPTY:
                    table[line] = end


@njit(**OPTIONS)
def _follow(text: np.ndarray, length: int, tables: np.ndarray, min_n: int, keys: np.ndarray) -> int:
    """Where the continuation of the longest match begins, or `length` if there is none."""
    end = length - 1
    top = min(min_n + tables.shape[0] - 1, end)
    key, power = np.int64(0), np.int64(1)
    for n in range(1, top + 1):
        key += (text[end - n + 1] + 1) * power
        power *= _FACTOR
        keys[n - 1] = key
    for n in range(top, min_n - 1, -1):
        table = tables[n - min_n]
        place = table[_locate(text, end, n, keys[n - 1], table, tables.shape[1])]
        if place != EMPTY:
            return place + 1
    return length


@njit(**OPTIONS)
def _fingerprint(text: np.ndarray, length: int) -> int:
    key = np.int64(length)
    for i in range(max(0, length - _PRINTED), length):
        key = (key ^ text[i]) * _FACTOR
    return key


@njit(**OPTIONS)
def _catch_up(
    text: np.ndarray, length: int, arena: np.ndarray, line: np.ndarray, min_n: int, count_n: int, latest: bool
) -> bool:
    """Index what is new in a slot's text, or all of it if it was replaced; False if its tables are too small."""
    known = line[LENGTH]
    if length < known or (known > 0 and _fingerprint(text, known) != line[PRINT]):
        line[INDEXED] = 0
    if line[CAPACITY] * 2 < length * 3:
        return False
    tables = arena[line[OFFSET] : line[OFFSET] + count_n * line[CAPACITY]].reshape(count_n, line[CAPACITY])
    if line[INDEXED] == 0:
        tables[:] = EMPTY
    # The suffix itself is not indexed until more text follows: it must not match itself.
    _insert(text, line[INDEXED], length - 1, tables, min_n, latest)
    line[INDEXED], line[LENGTH], line[PRINT] = length - 1, length, _fingerprint(text, length)
    return True


@njit(**OPTIONS)
def serve(
    history: np.ndarray,
    rows: np.ndarray,
    slots: np.ndarray,
    lengths: np.ndarray,
    budget: np.ndarray,
    arena: np.ndarray,
    state: np.ndarray,
    min_n: int,
    max_n: int,
    latest: bool,
    limit: int,
    first: int,
    tokens: np.ndarray,
    counts: np.ndarray,
) -> int:
    """Index and look up groups from `first` on; returns the group whose slot needs larger tables, or -1.

    Group g's text is history[rows[g], :lengths[g]]; length 0 is padding and leaves the slot unchanged.
    """
    count_n = max_n - min_n + 1
    keys = np.empty(max_n, np.int64)
    for g in range(first, len(slots)):
        length = lengths[g]
        counts[g] = 0
        if length <= 0:
            continue
        if slots[g] >= len(state):
            return g
        text, line = history[rows[g]], state[slots[g]]
        if not _catch_up(text, length, arena, line, min_n, count_n, latest):
            return g
        most = min(budget[g], tokens.shape[1], limit - length)
        if most <= 0:
            continue
        tables = arena[line[OFFSET] : line[OFFSET] + count_n * line[CAPACITY]].reshape(count_n, line[CAPACITY])
        start = _follow(text, length, tables, min_n, keys)
        counts[g] = min(most, length - start)
        for i in range(counts[g]):
            tokens[g, i] = text[start + i]
    return -1


class NgramIndex:
    """The tables of every slot, in one growing array; a slot's tables move to larger space as its text grows."""

    def __init__(self, min_n: int, max_n: int, latest: bool = False) -> None:
        """`latest` takes the last of several matches instead of the first."""
        if not 1 <= min_n <= max_n:
            raise ValueError(f"n-gram sizes must satisfy 1 <= min_n <= max_n, got {min_n} and {max_n}.")
        self.min_n, self.max_n, self.latest = min_n, max_n, latest
        self._state = np.zeros((0, 5), np.int64)
        self._arena = np.empty(0, np.int32)
        self._used = 0
        self._free: dict[int, list[int]] = {}  # offsets of freed tables, by capacity

    @property
    def bytes(self) -> int:
        """Bytes held by the index."""
        return self._arena.nbytes + self._state.nbytes

    def propose(
        self,
        history: np.ndarray,
        rows: np.ndarray,
        slots: np.ndarray,
        lengths: np.ndarray,
        budget: np.ndarray,
        limit: int,
        tokens: np.ndarray,
        counts: np.ndarray,
    ) -> None:
        """Up to budget[g] guesses for slot slots[g], whose text is history[rows[g], :lengths[g]].

        No text grows past `limit`. Fills tokens [G, K] and counts [G].
        """
        group = 0
        while True:
            group = serve(
                history,
                rows,
                slots,
                lengths,
                budget,
                self._arena,
                self._state,
                self.min_n,
                self.max_n,
                self.latest,
                limit,
                group,
                tokens,
                counts,
            )
            if group < 0:
                return
            self._enlarge(int(slots[group]), int(lengths[group]))

    def reset(self, slot: int) -> None:
        """Forget a slot's text and free its tables."""
        if slot < len(self._state):
            self._release(slot)
            self._state[slot] = 0

    def _enlarge(self, slot: int, length: int) -> None:
        """Give a slot empty tables for twice its text; the text is indexed again, a cost paid once per doubling."""
        if slot >= len(self._state):
            self._state = np.concatenate([self._state, np.zeros((slot + 1 - len(self._state), 5), np.int64)])
        self._release(slot)
        capacity = 1 << max(6, (2 * length - 1).bit_length())
        size = capacity * (self.max_n - self.min_n + 1)
        free = self._free.get(capacity)
        if free:
            offset = free.pop()
        else:
            offset, self._used = self._used, self._used + size
            if self._used > len(self._arena):
                grown = np.empty(max(self._used, len(self._arena) * 3 // 2), np.int32)
                grown[:offset] = self._arena[:offset]
                self._arena = grown
        self._state[slot] = (offset, capacity, 0, 0, 0)

    def _release(self, slot: int) -> None:
        offset, capacity = int(self._state[slot, OFFSET]), int(self._state[slot, CAPACITY])
        if capacity:
            self._free.setdefault(capacity, []).append(offset)
