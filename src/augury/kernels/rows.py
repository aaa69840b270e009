"""The rows of a forward pass, as the engine lays them out and kernels read them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(slots=True)
class Rows:
    """The rows of one forward pass; all tensors live on the target's device and are padded to a bucket.

    Padding rows have context 0, no ancestors, position 0, the padding slot and write to cache row 0, which belongs to
    the null block that no request ever owns.
    """

    tokens: Tensor  # int64 [R]
    positions: Tensor  # int64 [R]: rotary position
    slots: Tensor  # int64 [R]: which row of block_tables
    context: Tensor  # int64 [R]: logical cache rows 0 .. context-1 of the slot are visible
    base: Tensor  # int64 [R]: logical cache row of tree node 0
    ancestors: Tensor  # int64 [R]: bit j set: logical cache row base + j is visible too (a node's own bit is set)
    write: Tensor  # int64 [R]: physical cache row (block * block_size + offset) that takes this row's key and value
    wanted: Tensor  # int64 [L]: rows whose logits are wanted; none in a pass that only reads
    block_tables: Tensor  # int64 [slots, blocks]: physical block of each logical block
    block_size: int
    span: int  # no row sees a logical cache row at or past this; rounded up so that it takes few values
    first: int = 0  # no row sees a logical cache row before this
    chunked: bool = False  # some slot may have many rows: a prompt chunk
    groups: int = 0  # at most so many slots have rows; 0: unknown
    long: Tensor | None = None  # int64 [R]: 1 where the row's text is longer than the target's switch_length
    adapters: Tensor | None = None  # int64 [R]: each row's LoRA adapter, 0 for none; None if no row has one
    own_words: bool = False  # where the vocabulary is split over ranks, logits of this rank's tokens are enough

    def only(self, some: Tensor) -> Rows:
        """These rows of a pass without adapters, all of them wanted; the others are in the cache by now."""
        table = torch.stack(
            (self.tokens, self.positions, self.slots, self.context, self.base, self.ancestors, self.write)
        )
        tokens, positions, slots, context, base, ancestors, write = table[:, some]
        return replace(
            self,
            tokens=tokens,
            positions=positions,
            slots=slots,
            context=context,
            base=base,
            ancestors=ancestors,
            write=write,
            wanted=torch.arange(len(some), device=some.device),
            chunked=False,
        )
