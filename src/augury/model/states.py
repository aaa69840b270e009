"""The recurrent layers' state of each sequence, kept in addition to the KV cache.

A recurrent state cannot be rolled back by shortening a length, so draft tokens never enter it. What is stored is the
state after confirmed tokens; of the draft's nodes a forward pass keeps only the inputs, from which the accepted ones
are run again at the beginning of the next pass. The numbers are the same, so the text is the same with and without
drafts.

Each slot has two lines, used in turns: a pass reads the one with the longest prefix that it can continue from, and
writes the other, so a failed pass can be run again and nothing needs to be undone. The lines after the slots' hold
saved states of prefixes, for other requests to reuse (engine/saved_states.py), and the very last is the empty state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from augury.kernels.recurrence import COLUMNS, make_memory

NEVER = 1 << 60  # longer than any text


@dataclass(frozen=True, slots=True)
class StateShape:
    """What one recurrent layer keeps of a sequence."""

    channels: int  # values of a row that its convolution reads
    taps: int  # earlier rows that the convolution reads: its kernel size minus one
    gates: int = 0  # further inputs of a row
    heads: int = 0  # of the state; a layer that only convolves has none
    key_dim: int = 0
    value_dim: int = 0

    @property
    def size(self) -> int:
        """Numbers in one line, including the columns that pad the last block."""
        return self.taps * self.channels + self.heads * self.key_dim * (-(-self.value_dim // COLUMNS) * COLUMNS)

    @property
    def logged(self) -> int:
        """Numbers kept of each draft node."""
        return self.channels + self.gates


@dataclass(slots=True)
class States:
    """The states of all layers, float32; `slots` counts the slot that padding uses, which is the last."""

    shapes: list[StateShape]
    slots: int
    nodes: int  # the largest draft
    tails: list[Tensor]  # each [lines, taps, channels]: the last rows that the convolution read
    memory: list[Tensor]  # each as kernels.recurrence.make_memory lays it out
    logs: list[Tensor]  # each [2 * slots, nodes, channels + gates]: inputs of the nodes after a line's prefix
    lengths: Tensor  # int64 [slots, 2]: tokens in the prefix of each of a slot's lines
    save_at: Tensor  # int64 [slots]: the prefix whose state the next passes save on their way
    save_line: Tensor  # int64 [slots]: the line that it is saved to

    @classmethod
    def allocate(cls, shapes: list[StateShape], slots: int, nodes: int, saved: int, device: torch.device) -> States:
        """Allocate two lines for each of `slots` (padding's included), `saved` more, and the empty state."""
        lines, nodes = 2 * slots + saved + 1, max(1, nodes)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, device=device)

        return cls(
            shapes,
            slots,
            nodes,
            [zeros(lines, s.taps, s.channels) for s in shapes],
            [make_memory(lines, s.heads, s.key_dim, s.value_dim, device) for s in shapes],
            [zeros(2 * slots, nodes, s.logged) for s in shapes],
            torch.full((slots, 2), NEVER, device=device),
            torch.full((slots,), NEVER, device=device),
            torch.zeros(slots, dtype=torch.int64, device=device),
        )

    @property
    def first_saved(self) -> int:
        """The first line after those of the slots."""
        return 2 * self.slots

    @property
    def num_saved(self) -> int:
        """Lines for saved states."""
        return len(self.tails[0]) - 2 * self.slots - 1

    def restore(self, slot: int, line: int, length: int) -> None:
        """Start a slot from a saved state of a prefix of `length` tokens."""
        for store in (*self.tails, *self.memory):
            store[2 * slot] = store[line]
        self.lengths[slot, 0], self.lengths[slot, 1] = length, NEVER

    def save_next(self, slots: list[int], ends: list[int], lines: list[int]) -> None:
        """Set the prefix of each slot whose state the next passes save, and the line it goes to."""
        if not slots:
            return
        device = self.lengths.device
        where = torch.tensor(slots, device=device)
        self.save_at[where] = torch.tensor(ends, device=device)
        self.save_line[where] = torch.tensor(lines, device=device)

    def keep_path(self, slots: Tensor, path: Tensor) -> None:
        """Move a tree's accepted nodes, path int64 [G, N] from the root down, to the front of the slot's log."""
        lengths = self.lengths[slots]
        line = (2 * slots + torch.where(lengths < NEVER, lengths, -1).argmax(1))[:, None]
        order = torch.arange(path.shape[1], device=path.device)
        source = torch.where(path >= 0, path, order)
        for log in self.logs:
            log[line, order] = log[line, source]


def line_bytes(shapes: list[StateShape]) -> int:
    """Bytes of one state over all layers."""
    return sum(shape.size for shape in shapes) * torch.float32.itemsize


def slot_bytes(shapes: list[StateShape], nodes: int) -> int:
    """Bytes of a slot: two lines, each with a log of the draft's nodes."""
    return 2 * (line_bytes(shapes) + max(1, nodes) * sum(s.logged for s in shapes) * torch.float32.itemsize)
