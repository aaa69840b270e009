"""Target features that a drafter has yet to read, kept while no request drafts: a pause costs and loses nothing.

A drafter with weights reads every new token to keep its KV cache complete. While no request may draft, its forward
passes are skipped and the target's features of the new tokens are put aside, by cache block. They are handed over in
one piece before a request that holds these blocks drafts again, or when it has put enough of them aside to be read at
the price of a few. What a request leaves unread when it ends stays with its blocks: a request that finds them in the
prefix cache reads it with its own first pass; if none does, it is never read. A pass that overwrites a block drops
what belonged to it.

At most MOST_BYTES are kept. The oldest go first; a prefix whose features are gone gives worse drafts, never another
text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from augury.drafters.base import Drafter, DraftInput

MOST = 256  # tokens put aside per request
MOST_BYTES = 256 << 20  # of features put aside in all
Rows = tuple[Tensor, ...]  # rows of the same tokens, one tensor per stream of features


class Unread:
    """Unread rows of one block, in order; those before `first` have been read."""

    def __init__(self, first: int) -> None:
        self.first = self.end = first  # positions within the block: of the first row, and one past the last
        self.pieces: list[Rows] = []
        self.bytes = 0

    def add(self, rows: Rows, count: int) -> None:
        """Append rows."""
        self.pieces.append(rows)
        self.end += count
        self.bytes += sum(stream.nbytes for stream in rows)

    def cut(self, end: int) -> None:
        """Keep the rows before `end`, copied to one piece so that no pass's tensors are kept alive."""
        kept = tuple(torch.cat(streams)[: end - self.first] for streams in zip(*self.pieces, strict=True))
        self.pieces, self.end, self.bytes = [kept], end, sum(stream.nbytes for stream in kept)


class Backlog:
    """The unread rows of all blocks."""

    def __init__(self, padding_slot: int) -> None:
        self._padding = padding_slot
        self._unread: OrderedDict[int, Unread] = OrderedDict()  # by block, or by the number `copy` gave; oldest first
        self._told: dict[int, tuple[int, str, str]] = {}  # what `admit` was given for each slot's request
        self._waiting: dict[int, int] = {}  # tokens that the request in a slot has put aside
        self.bytes = 0  # of all rows

    def full(self, inputs: DraftInput) -> bool:
        """Whether any request of a pass has put aside as many tokens as it may."""
        return any(self._waiting.get(slot, 0) >= MOST for slot in inputs.slots.tolist())

    def admit(self, slot: int, prompt_len: int, tenant: str, request: str) -> None:
        """Note that a request takes a slot."""
        self.forget(slot)  # a request that was preempted there
        self._told[slot] = prompt_len, tenant, request

    def forget(self, slot: int) -> None:
        """Note that a request leaves its slot; what it has put aside stays with its blocks."""
        self._told.pop(slot, None)
        self._waiting.pop(slot, None)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Follow blocks that are copied elsewhere; such places have numbers that no block has."""
        for unread, target in zip([self._unread.get(source) for source in sources], targets, strict=True):
            self._drop(target)
            if unread is not None:
                self._keep(target, unread)

    def put_aside(self, inputs: DraftInput) -> None:
        """Keep the target's features of a pass without drafts, whose tokens the drafter does not read now."""
        tables, size = inputs.block_tables.numpy(), inputs.block_size
        slots, starts, begins, counts = (
            t.tolist() for t in (inputs.slots, inputs.start, inputs.row_begin, inputs.num_new_tokens)
        )
        for slot, start, begin, count in zip(slots, starts, begins, counts, strict=True):
            if slot == self._padding or not count:
                continue
            self._waiting[slot] = self._waiting.get(slot, 0) + count
            end = start + count
            while start < end:
                block, place = int(tables[slot, start // size]), start % size
                more = min(end - start, size - place)
                unread = self._until(block, place)
                unread.add(tuple(stream[begin : begin + more] for stream in inputs.features), more)
                if unread.end == size:
                    unread.cut(size)
                self._keep(block, unread)
                start, begin = start + more, begin + more

    def hand_over(self, inputs: DraftInput, drafter: Drafter) -> DraftInput:
        """Return the inputs with the rows put aside before the pass's own, as if all had been one pass."""
        slots, starts = inputs.slots.tolist(), inputs.start.tolist()
        for slot in slots:
            self._waiting.pop(slot, None)
        if not self._unread:
            return inputs
        sizes = inputs.num_new_tokens + inputs.nodes
        ends = (inputs.start + sizes).tolist()
        more = [self._before(inputs, slot, start) for slot, start in zip(slots, starts, strict=True)]
        for slot, start, end, unread in zip(slots, starts, ends, more, strict=True):
            self._read(inputs, slot, start - _count(unread), end)
        extra = torch.tensor([_count(unread) for unread in more])
        if not extra.any():
            return inputs
        self._tell(inputs, (inputs.start - extra).tolist(), more, drafter)
        rows = sizes + extra
        return replace(
            inputs,
            start=inputs.start - extra,
            num_new_tokens=inputs.num_new_tokens + extra,
            row_begin=rows.cumsum(0) - rows,
            features=tuple(_joined(inputs, i, more, sizes.tolist()) for i in range(len(inputs.features))),
            most_rows=inputs.most_rows + int(extra.sum()),
            chunked=True,
        )

    def _before(self, inputs: DraftInput, slot: int, end: int) -> list[Unread]:
        """The unread rows of a slot right before position `end`; there are no others, as tokens are read in order."""
        found, tables = list[Unread](), inputs.block_tables.numpy()
        while end and slot != self._padding:
            place = (end - 1) % inputs.block_size
            unread = self._unread.get(int(tables[slot, (end - 1) // inputs.block_size]))
            if unread is None or not unread.first <= place < unread.end:
                break
            if place + 1 < unread.end:  # a pass that failed is run again, as in `_until`
                unread.cut(place + 1)
            found.insert(0, unread)
            end -= place + 1 - unread.first
            if unread.first:
                break
        return found

    def _read(self, inputs: DraftInput, slot: int, begin: int, end: int) -> None:
        """Drop the unread rows of the blocks of these positions: they are read now, or overwritten."""
        if slot == self._padding:
            return
        tables, size = inputs.block_tables.numpy(), inputs.block_size
        for block in tables[slot, begin // size : -(-end // size)].tolist():
            self._drop(block)

    def _tell(self, inputs: DraftInput, begins: list[int], more: list[list[Unread]], drafter: Drafter) -> None:
        """Tell the drafter where it begins to read, as if a prefix of that length had been found in the cache.

        A head's first row after a prefix depends on features kept at the end of a block. If reading begins within a
        block, the request, or one that it shares the block with, has made that row already: no prefix is reported.
        """
        for slot, begin, unread in zip(inputs.slots.tolist(), begins, more, strict=True):
            if unread and slot in self._told:
                prompt_len, tenant, request = self._told[slot]
                within = inputs.features and begin % inputs.block_size
                drafter.admit(slot, prompt_len, 0 if within else begin, tenant, request)

    def _until(self, block: int, place: int) -> Unread:
        """Take out a block's unread rows right before a position; rows that do not reach it are dropped."""
        unread = self._drop(block)
        if unread is None or not unread.first < place <= unread.end:
            return Unread(place)
        if place < unread.end:  # a pass that failed is run again
            unread.cut(place)
        return unread

    def _keep(self, block: int, unread: Unread) -> None:
        self._unread[block] = unread
        self.bytes += unread.bytes
        while self.bytes > MOST_BYTES:
            self._drop(next(iter(self._unread)))

    def _drop(self, block: int) -> Unread | None:
        unread = self._unread.pop(block, None)
        self.bytes -= unread.bytes if unread is not None else 0
        return unread


def _count(unread: list[Unread]) -> int:
    return sum(block.end - block.first for block in unread)


def _joined(inputs: DraftInput, stream: int, more: list[list[Unread]], sizes: list[int]) -> Tensor:
    """One stream of the features handed over."""
    pieces = []
    for unread, begin, size in zip(more, inputs.row_begin.tolist(), sizes, strict=True):
        pieces += [rows[stream] for block in unread for rows in block.pieces]
        pieces.append(inputs.features[stream][begin : begin + size])
    return torch.cat(pieces)
