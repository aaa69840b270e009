"""Grammar masks on the device, at places that never move, so that captured passes can read them when replayed.

Every slot has a line for the end of its text and one for each node of its draft. Which of them a pass reads is settled
before the masks are there, so that a pass can be in flight while the host still makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from augury.engine.grammar import Grammar
from augury.engine.staging import Staging
from augury.kernels.verify import WORD_BITS

MOST_BYTES = 256 << 20  # a larger table is not made: masks then come with each pass, which runs without a graph
FREE = -1


@dataclass(slots=True)
class MaskTable:
    """The masks of every slot."""

    bits: Tensor  # int32 [S * each, ceil(V / 32)], see Masks
    begin: Tensor  # int64 [S]: the line for the end of each slot's text; FREE: its request has no grammar
    each: int  # lines of a slot: 1 + the nodes of a draft
    staging: Staging
    _waiting: dict[int, np.ndarray] = field(default_factory=dict)  # by slot, written by the host and not yet sent

    @classmethod
    def allocate(cls, slots: int, nodes: int, vocab: int, staging: Staging, device: torch.device) -> MaskTable | None:
        """Room for all slots; None if that is more than MOST_BYTES."""
        each, width = 1 + nodes, -(-vocab // WORD_BITS)
        if slots * each * width * 4 > MOST_BYTES:
            return None
        bits = torch.full((slots * each, width), -1, dtype=torch.int32, device=device)
        return cls(bits, torch.full((slots,), FREE, device=device), each, staging)

    def seat(self, slot: int, grammar: Grammar | None) -> None:
        """Set a slot for the request that takes it, with or without a grammar."""
        self.begin[slot] = FREE if grammar is None else slot * self.each
        self._waiting.pop(slot, None)
        if grammar is not None:
            self.put(slot, grammar.masks)

    def put(self, slot: int, masks: np.ndarray) -> None:
        """Set the masks int32 [1 + nodes, W] for the next pass; `send` copies them to the device.

        A mask without any token becomes one with all: the request ends before it is read, but something must be drawn.
        """
        self._waiting[slot] = np.where(masks.any(1, keepdims=True), masks, np.int32(-1))

    def send(self) -> None:
        """Send the waiting masks to the device, all in one copy."""
        if not self._waiting:
            return
        lines = [slot * self.each + i for slot, masks in self._waiting.items() for i in range(len(masks))]
        where = self.staging.send(np.array(lines, dtype=np.int64))
        self.bits[where] = self.staging.send(np.concatenate(list(self._waiting.values())))
        self._waiting.clear()

    def lines(self, slots: Tensor, first: Tensor, drawn: Tensor) -> Tensor:
        """The mask of every line of logits that is drawn from, int64 [L], -1 where there is none.

        `slots` and `first` [G] are the groups' slots and the lines of their roots, `drawn` [L] the slots of all lines.
        """
        roots = torch.full_like(self.begin, len(drawn)).index_put((slots,), torch.where(first < 0, len(drawn), first))
        number = torch.arange(len(drawn), device=drawn.device) - roots[drawn]
        begin = self.begin[drawn]
        return torch.where((begin >= 0) & (number >= 0) & (number < self.each), begin + number, FREE)
