"""The memory of a suffix index: arrays that grow by a quarter, up to a limit in bytes."""

from __future__ import annotations

import numpy as np

from augury.index.suffix_batch import has_room
from augury.index.suffix_kids import refill
from augury.index.suffix_layout import (
    BLOCK,
    BLOCKS_FREE,
    BLOCKS_USED,
    FEW,
    FIRST,
    KID,
    LAST,
    LENGTH,
    LIMIT,
    NO_KID,
    NODES_FREE,
    NODES_USED,
    NONE,
    NUMBER,
    ROOT,
    TABLE_USED,
    Arrays,
    free_node,
    new_node,
)
from augury.index.suffix_remove import fell, remove


class Arena:
    """Arrays for any number of trees, and the sequences in them."""

    def __init__(self, depth: int, max_bytes: int | None) -> None:
        """Hold strings of up to `depth` tokens in at most `max_bytes`."""
        counters = np.zeros(8, np.int64)
        counters[[LIMIT, NODES_FREE, BLOCKS_FREE]] = depth, NONE, NONE
        self.max_bytes = max_bytes
        self.arrays = Arrays(
            np.empty((0, 11), np.int32),
            np.empty((0, 4), np.int32),
            np.empty((0, 4), np.int32),
            np.empty((0, 5), np.int32),
            _empty_table(16),
            counters,
        )
        self._free_sequences: list[int] = []
        self._sequences = 0
        self._numbers = 0

    @property
    def bytes(self) -> int:
        """Memory held, room to grow included."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def tokens(self) -> int:
        """Tokens in all sequences."""
        return int(self.arrays.sequences[: self._sequences, LENGTH].sum())

    def ensure(self, tokens: int, sequences: int) -> bool:
        """Make room for more tokens and sequences; False if the limit forbids it."""
        if has_room(*self.arrays, tokens, sequences):
            return True
        a, counters = self.arrays, self.arrays.counters
        suffixes = tokens + sequences * int(counters[LIMIT])
        nodes = int(counters[NODES_USED]) + 2 * suffixes + 8
        blocks = int(counters[BLOCKS_USED]) + tokens // BLOCK + 2 * sequences
        table = -(-4 * (int(counters[TABLE_USED]) + (FEW + 1) * suffixes) // 3)
        for ease in (1.25, 1.0):  # near the limit, exactly what is needed
            sizes = [
                have if have >= need else max(need, int(have * ease))
                for have, need in zip((len(a.nodes), len(a.blocks), len(a.table)), (nodes, blocks, table), strict=True)
            ]
            if self.max_bytes is None or self._bytes_of(*sizes) <= self.max_bytes:
                self._resize(*sizes)
                return True
        return False

    def _bytes_of(self, nodes: int, blocks: int, table: int) -> int:
        a = self.arrays
        return 44 * nodes + (16 * BLOCK + 16) * blocks + 8 * table + a.sequences.nbytes + a.counters.nbytes

    def _resize(self, nodes: int, blocks: int, table: int) -> None:
        a = self.arrays
        grown = a.table
        if table > len(a.table):
            grown = _empty_table(table)
            refill(a.table, grown)
        self.arrays = a._replace(
            nodes=_grown(a.nodes, nodes),
            blocks=_grown(a.blocks, blocks),
            places=_grown(a.places, blocks * BLOCK),
            table=grown,
        )

    def plant(self) -> int:
        """The root of a new, empty tree; needs room for one more node, see `ensure`."""
        return int(new_node(self.arrays, 0, 0, NONE))

    def uproot(self, root: int) -> None:
        """Free the root of an empty tree."""
        free_node(self.arrays, root)

    def open(self, root: int) -> int:
        """A new, empty sequence in a tree, the most recent one."""
        if not self._free_sequences:
            if self._sequences == len(self.arrays.sequences):
                size = max(64, self._sequences * 5 // 4)
                self.arrays = self.arrays._replace(sequences=_grown(self.arrays.sequences, size))
            self._free_sequences.append(self._sequences)
            self._sequences += 1
        sequence = self._free_sequences.pop()
        line = self.arrays.sequences[sequence]
        line[ROOT], line[FIRST], line[LAST], line[LENGTH], line[NUMBER] = root, NONE, NONE, 0, self._numbers
        self._numbers += 1
        return sequence

    def remove(self, sequence: int) -> None:
        """Take a sequence out of its tree."""
        remove(self.arrays, sequence)
        self._free_sequences.append(sequence)

    def fell(self, sequence: int) -> None:
        """Remove a sequence and its tree, which holds no other sequence."""
        fell(self.arrays, sequence)
        self._free_sequences.append(sequence)

    def read(self, sequence: int) -> np.ndarray:
        """The tokens of a sequence, int32."""
        a = self.arrays
        length, block = int(a.sequences[sequence, LENGTH]), int(a.sequences[sequence, FIRST])
        parts = []
        while block >= 0:
            parts.append(a.places[block * BLOCK : (block + 1) * BLOCK, 0])
            block = int(a.blocks[block, 0])
        return np.concatenate(parts)[:length] if parts else np.empty(0, np.int32)


def _empty_table(size: int) -> np.ndarray:
    table = np.zeros((size, 2), np.int32)
    table[:, KID] = NO_KID
    return table


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    if size <= len(array):
        return array
    grown = np.empty((size, array.shape[1]), array.dtype)
    grown[: len(array)] = array
    return grown
