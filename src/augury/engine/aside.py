"""Target features that a captured drafter has yet to read, kept on the device while it rests.

A drafter rests when it skips its forward pass because no request drafts. That costs nothing, but before it drafts again
it must read the tokens it has missed. So a pass without drafts stores the target's features of its tokens in rows that
each slot has here. They are read in one go, outside any CUDA graph: before a pass that drafts, when a slot's rows are
full, and when its request leaves the slot, because others may share its blocks. The host keeps its own upper bounds of
the counts, so that it need not wait for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from augury.drafters.base import Drafter, DraftInput
from augury.engine.advance import StepOutput
from augury.engine.rows import Segments, round_up
from augury.engine.scheduled import ScheduledRequest
from augury.engine.state import SlotState
from augury.kernels.faces import face
from augury.verify.tree import Draft

if TYPE_CHECKING:
    from augury.engine.runner import Runner

LINES, FEWEST = 64, 8  # rows per slot, one token each: LINES if they fit into MOST_BYTES, else at least FEWEST
MOST_BYTES = 512 << 20
DEPTHS = (0, 1, 3, 5, 8, 12, 20, 32)  # draft depths that graphs are captured for, besides the greatest
ROWS = 2048  # tokens read at once: as many as a large prefill chunk


class Aside:
    """The features that the drafter has not read yet, by slot."""

    def __init__(self, state: SlotState, drafter: Drafter, block_size: int) -> None:
        self._state, self._drafter, self._block_size = state, drafter, block_size
        self._reads = drafter.bytes_per_token > 0  # drafters without a cache keep nothing between steps
        self._count = torch.zeros_like(state.length)
        self._features: tuple[Tensor, ...] = ()  # [slots * lines, hidden] each, allocated in the first, blank pass
        self._lines = LINES  # per slot
        self._most: dict[int, int] = {}  # by slot: tokens put aside, an upper bound: the device may stop a request
        self._leaving: list[int] = []

    def skip(self, segments: Segments, output: StepOutput) -> Draft:
        """Stands in for drafting, captured with the pass: returns no drafts and puts the pass's features aside."""
        if self._reads:
            self._keep(segments, output.layout.row_begin, output.scores.features)
        pending = self._state.draft
        draft = Draft.empty(len(segments.slots), pending.tokens.shape[1], pending.tokens.device)
        pending.count[segments.slots] = draft.count
        return draft

    def _keep(self, segments: Segments, row_begin: Tensor, features: tuple[Tensor, ...]) -> None:
        """Keep the features of the one token that the pass has run for each request."""
        if not self._features:
            self._allocate(features)
        if face(row_begin.device) == "triton":
            from augury.kernels.aside_triton import count_aside, put_aside

            for kept, stream in zip(self._features, features, strict=True):
                put_aside(stream, kept, self._count, segments.table, row_begin, self._lines)
            count_aside(self._count, segments.table)
            return
        ran = segments.num_new_tokens.clamp(max=1)
        slots = torch.where(ran > 0, segments.slots, self._state.padding_slot)
        line = slots * self._lines + self._count[slots].clamp(max=self._lines - 1)
        for kept, stream in zip(self._features, features, strict=True):
            kept[line] = stream[row_begin.clamp(max=len(stream) - 1)]
        self._count[slots] += ran

    def _allocate(self, features: tuple[Tensor, ...]) -> None:
        line = len(self._count) * sum(stream.shape[1] * stream.element_size() for stream in features)
        self._lines = min(LINES, max(FEWEST, MOST_BYTES // max(line, 1)))
        lines = len(self._count) * self._lines
        self._features = tuple(stream.new_zeros(lines, stream.shape[1]) for stream in features)

    def before(self, scheduled: list[ScheduledRequest], rests: bool) -> None:
        """Before a launch: read what was missed if the pass drafts or a slot is full; count tokens if it rests."""
        if not self._reads:
            return
        slots = [item.request.slot for item in scheduled]
        if not rests or any(self._most.get(slot, 0) >= self._lines for slot in slots):
            self._read([slot for slot in slots if self._most.get(slot)])
        if rests:
            for slot in slots:
                self._most[slot] = self._most.get(slot, 0) + 1

    def forget(self, slot: int) -> None:
        """Drop what a slot has put aside, as another request takes it."""
        if self._most.pop(slot, 0):
            self._count[slot] = 0

    def leave(self, slot: int) -> bool:
        """Note that a request leaves its slot; returns whether it has unread tokens, so that `settle` is due."""
        if self._most.get(slot):
            self._leaving.append(slot)
        return slot in self._most

    def settle(self) -> None:
        """Read what requests put aside before they left, before others take their slots and blocks."""
        leaving, self._leaving = self._leaving, []
        self._read(leaving)
        for slot in leaving:
            self._drafter.reset(slot)

    def _read(self, slots: list[int]) -> None:
        for some in self._portions(slots):
            self._drafter.propose(self._missed(some, sum(self._most.pop(slot, 0) for slot in some)))
            self._count[self._on_device(some)] = 0

    def _portions(self, slots: list[int]) -> Iterator[list[int]]:
        """Split slots into portions of at most ROWS unread tokens, which are read at once."""
        some, rows = list[int](), 0
        for slot in slots:
            if some and rows + self._most.get(slot, 0) > ROWS:
                yield some
                some, rows = [], 0
            some.append(slot)
            rows += self._most.get(slot, 0)
        if some:
            yield some

    def probe(self, slots: int, rows: int) -> None:
        """Read padding of this size, so that whatever is compiled on first use is compiled now."""
        self._drafter.propose(self._missed([self._state.padding_slot] * slots, rows))

    def _on_device(self, slots: list[int]) -> Tensor:
        padding = [self._state.padding_slot] * (round_up(len(slots)) - len(slots))
        return self._state.staging.send(np.array(slots + padding, np.int64))

    def _missed(self, slots: list[int], most: int) -> DraftInput:
        """A drafter's input that reads the missed tokens of these slots, at most `most`, and drafts nothing."""
        state, groups = self._state, self._on_device(slots)
        count, lengths = self._count[groups], state.length[groups]
        none = torch.zeros_like(groups)
        return DraftInput(
            groups,
            lengths,
            none,
            state.history,
            state.sampling,
            state.block_tables,
            self._block_size,
            most_rows=round_up(most + 2 * len(groups)),  # a draft model reads the newest token, too
            span=state.block_tables.shape[1] * self._block_size,
            chunked=True,
            row_begin=groups * self._lines,
            start=(lengths - 1 - count).clamp(min=0),
            num_new_tokens=count,
            nodes=none,
            path=torch.full((len(groups), state.draft.tokens.shape[1]), -1, device=groups.device),
            features=self._features,
            most_nodes=0,
        )


def draft_depths(nodes: int, at_once: bool) -> tuple[int, ...]:
    """Draft depths to capture graphs for; only 0 and the greatest if all tokens are drafted `at_once`."""
    return tuple(sorted({0, nodes} if at_once else {nodes, *(depth for depth in DEPTHS if depth < nodes)}))


def may_rest(runner: Runner, at_once: bool) -> None:
    """Before graphs are captured: let a captured drafter draft less than its full depth, and rest.

    With several ranks it never rests, because all of them would have to read what was put aside together.
    """
    drafter = runner.drafter
    if drafter is None or drafter.on_host or drafter.saver is not None or runner.captured is None:
        return
    runner.depths = draft_depths(runner.nodes, at_once or drafter.branching)
    if runner.target.split is None:
        runner.aside = Aside(runner.state, drafter, runner.block_size)
