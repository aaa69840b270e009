"""What a drafter has not read while no request drafts, so that a pause costs nothing and loses nothing.

A drafter with weights reads every new token to keep its cache whole. While no request may draft, its passes are left
out and the target's features of their rows are put aside; they are handed over in one piece before it drafts again, or
when a request has put enough of them aside to be read at the price of a few.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from augury.drafters.base import DraftInput
from augury.engine.state import SlotState

MOST = 64  # tokens of one request put aside


class Unread:
    """The rows of one slot, in order, and the position of the first."""

    def __init__(self, start: int) -> None:
        self.start, self.count = start, 0
        self.pieces: list[tuple[Tensor, ...]] = []

    def add(self, rows: tuple[Tensor, ...], count: int) -> None:
        """Keep rows to be read later."""
        self.pieces.append(rows)
        self.count += count


class Backlog:
    """The unread rows of all slots."""

    def __init__(self, padding_slot: int) -> None:
        self._padding = padding_slot
        self._unread: dict[int, Unread] = {}

    @property
    def full(self) -> bool:
        """Whether a request has as much put aside as it may."""
        return any(unread.count >= MOST for unread in self._unread.values())

    def forget(self, slot: int) -> Unread | None:
        """A request leaves the slot, or another takes it; what it had put aside."""
        return self._unread.pop(slot, None)

    def last_of(self, slot: int, length: int, state: SlotState, block_size: int) -> DraftInput | None:
        """What a request that leaves its slot has put aside, to be read by itself."""
        unread = self.forget(slot)
        if unread is None:
            return None

        def one(value: int) -> Tensor:
            return torch.tensor([value])

        return DraftInput(
            one(slot),
            one(length),
            one(0),
            state.history,
            state.sampling,
            state.block_tables,
            block_size,
            most_rows=unread.count,
            span=state.block_tables.shape[1] * block_size,
            chunked=True,
            row_begin=one(0),
            start=one(unread.start),
            num_new_tokens=one(unread.count),
            nodes=one(0),
            path=torch.full((1, state.draft.tokens.shape[1]), -1),
            features=tuple(torch.cat(streams) for streams in zip(*unread.pieces, strict=True)),
        )

    def put_aside(self, inputs: DraftInput) -> None:
        """Keep what a pass without drafts computed for tokens that the drafter does not read now."""
        slots, starts, begins, counts = (
            t.tolist() for t in (inputs.slots, inputs.start, inputs.row_begin, inputs.num_new_tokens)
        )
        for slot, start, begin, count in zip(slots, starts, begins, counts, strict=True):
            if slot == self._padding or not count:
                continue
            unread = self._unread.get(slot)
            if unread is None or unread.start + unread.count != start:  # a pass that failed is run again: begin anew
                unread = self._unread[slot] = Unread(start)
            unread.add(tuple(stream[begin : begin + count] for stream in inputs.features), count)

    def hand_over(self, inputs: DraftInput) -> DraftInput:
        """The pass's own rows behind those put aside, as if all had been one pass."""
        slots = inputs.slots.tolist()
        if not any(slot in self._unread for slot in slots):
            return inputs
        more = [self._missing(slot, int(start)) for slot, start in zip(slots, inputs.start, strict=True)]
        extra = torch.tensor([unread.count if unread else 0 for unread in more])
        sizes = inputs.num_new_tokens + inputs.nodes
        streams = tuple(self._joined(inputs, i, more, sizes.tolist()) for i in range(len(inputs.features)))
        rows = sizes + extra
        for slot in slots:
            self.forget(slot)
        return replace(
            inputs,
            start=inputs.start - extra,
            num_new_tokens=inputs.num_new_tokens + extra,
            row_begin=rows.cumsum(0) - rows,
            features=streams,
            most_rows=inputs.most_rows + int(extra.sum()),
            chunked=True,
        )

    def _missing(self, slot: int, start: int) -> Unread | None:
        unread = self._unread.get(slot)
        return unread if unread is not None and unread.start + unread.count == start else None

    def _joined(self, inputs: DraftInput, stream: int, more: list[Unread | None], sizes: list[int]) -> Tensor:
        pieces = []
        for unread, begin, size in zip(more, inputs.row_begin.tolist(), sizes, strict=True):
            pieces += [rows[stream] for rows in unread.pieces] if unread else []
            pieces.append(inputs.features[stream][begin : begin + size])
        return torch.cat(pieces)
