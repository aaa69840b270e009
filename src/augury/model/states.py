"""What recurrent layers remember of each sequence, beside the key-value cache.

A recurrent state cannot be cut back by moving a length, so drafts never enter it. What is stored is the state after
tokens that are certain; of the draft's nodes a pass keeps only what they brought along (their inputs), and those that
turn out to be accepted are run again, from these, at the beginning of the next pass. The numbers are the same, so text
is the same with drafts and without.

A slot has two lines, used in turns: a pass reads the one with the longest prefix that it can continue from, and writes
the other. So a pass that has failed can be run again, and nothing needs to be undone. Lines past the slots' hold states
of prefixes for others to find (engine/saved_states.py), and the very last is the empty state.
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

    channels: int  # what its convolution reads of a row
    taps: int  # earlier rows that the convolution looks at: its kernel size without one
    gates: int = 0  # what a row brings along besides
    heads: int = 0  # of the state; a layer that only convolves has none
    key_dim: int = 0
    value_dim: int = 0

    @property
    def size(self) -> int:
        """Numbers in one line, with the columns that fill a block up."""
        return self.taps * self.channels + self.heads * self.key_dim * (-(-self.value_dim // COLUMNS) * COLUMNS)

    @property
    def logged(self) -> int:
        """Numbers that are kept of a draft's node."""
        return self.channels + self.gates


@dataclass(slots=True)
class States:
    """The states of all layers, float32; `slots` counts the slot that padding uses, which is the last."""

    shapes: list[StateShape]
    slots: int
    nodes: int  # the largest draft
    tails: list[Tensor]  # each [lines, taps, channels]: what the convolution saw last
    memory: list[Tensor]  # each as kernels.recurrence.make_memory lays it out
    logs: list[Tensor]  # each [2 * slots, nodes, channels + gates]: inputs of the nodes after a line's prefix
    lengths: Tensor  # int64 [slots, 2]: tokens in the prefix of each of a slot's lines
    save_at: Tensor  # int64 [slots]: the prefix whose state is to be saved in passing
    save_line: Tensor  # int64 [slots]: and where

    @classmethod
    def allocate(cls, shapes: list[StateShape], slots: int, nodes: int, saved: int, device: torch.device) -> States:
        """Lines for `slots`, padding's included, and `saved` more."""
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
        """The first line that is no slot's."""
        return 2 * self.slots

    @property
    def num_saved(self) -> int:
        """Lines for saved states."""
        return len(self.tails[0]) - 2 * self.slots - 1

    def restore(self, slot: int, line: int, length: int) -> None:
        """Begin a slot with a saved state."""
        for store in (*self.tails, *self.memory):
            store[2 * slot] = store[line]
        self.lengths[slot, 0], self.lengths[slot, 1] = length, NEVER

    def save_next(self, slots: list[int], ends: list[int], lines: list[int]) -> None:
        """Which states the next passes save on their way, and where."""
        if not slots:
            return
        device = self.lengths.device
        where = torch.tensor(slots, device=device)
        self.save_at[where] = torch.tensor(ends, device=device)
        self.save_line[where] = torch.tensor(lines, device=device)

    def keep_path(self, slots: Tensor, path: Tensor) -> None:
        """A tree's accepted nodes, path int64 [G, N] from the root down, move to the front of what is kept of it."""
        lengths = self.lengths[slots]
        line = (2 * slots + torch.where(lengths < NEVER, lengths, -1).argmax(1))[:, None]
        order = torch.arange(path.shape[1], device=path.device)
        source = torch.where(path >= 0, path, order)
        for log in self.logs:
            log[line, order] = log[line, source]


def line_bytes(shapes: list[StateShape]) -> int:
    """What one state takes over all layers."""
    return sum(shape.size for shape in shapes) * torch.float32.itemsize


def slot_bytes(shapes: list[StateShape], nodes: int) -> int:
    """What a slot takes: its two lines, and its draft's nodes twice."""
    return 2 * (line_bytes(shapes) + max(1, nodes) * sum(s.logged for s in shapes) * torch.float32.itemsize)
