"""Where a captured drafter rests: on the device, what it has not read while no request drafts.

A drafter that reads nothing new costs nothing, but it must read what it has missed before it drafts again. So a pass in
which nobody drafts leaves the target's features of its tokens in the slot's own lines here; they are read in one piece,
outside of any graph, before a pass that drafts, when a slot has no lines left, and when its request leaves, because
others may share its blocks. The host counts along, so that nobody waits.
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

LINES, FEWEST = 64, 8  # tokens of one request put aside: so many where they fit into MOST_BYTES
MOST_BYTES = 512 << 20
DEPTHS = (0, 1, 3, 5, 8, 12, 20, 32)  # to which a captured drafter goes, besides as deep as it may
ROWS = 2048  # read at once: as many as a large chunk of a prompt


class Aside:
    """Unread features of every slot."""

    def __init__(self, state: SlotState, drafter: Drafter, block_size: int) -> None:
        self._state, self._drafter, self._block_size = state, drafter, block_size
        self._reads = drafter.bytes_per_token > 0  # others keep nothing between steps
        self._count = torch.zeros_like(state.length)
        self._features: tuple[Tensor, ...] = ()  # [slots * lines, hidden] each, made by the first pass, a blank one
        self._lines = LINES  # of each slot
        self._most: dict[int, int] = {}  # by slot: tokens put aside, at most: a request may have ended on the device
        self._leaving: list[int] = []

    def skip(self, segments: Segments, output: StepOutput) -> Draft:
        """In place of drafting, captured with the pass: no drafts, and what the drafter does not read is put aside."""
        if self._reads:
            self._keep(segments, output.layout.row_begin, output.scores.features)
        pending = self._state.draft
        draft = Draft.empty(len(segments.slots), pending.tokens.shape[1], pending.tokens.device)
        pending.count[segments.slots] = draft.count
        return draft

    def _keep(self, segments: Segments, row_begin: Tensor, features: tuple[Tensor, ...]) -> None:
        """Keep the features of the one token that each group has run."""
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
        """Before a pass is launched: count along if the drafter rests in it, else have it read what these miss."""
        if not self._reads:
            return
        slots = [item.request.slot for item in scheduled]
        if not rests or any(self._most.get(slot, 0) >= self._lines for slot in slots):
            self._read([slot for slot in slots if self._most.get(slot)])
        if rests:
            for slot in slots:
                self._most[slot] = self._most.get(slot, 0) + 1

    def forget(self, slot: int) -> None:
        """Another request takes a slot."""
        if self._most.pop(slot, 0):
            self._count[slot] = 0

    def leave(self, slot: int) -> bool:
        """A request leaves its slot; whether that has unread tokens, and is to be settled."""
        if self._most.get(slot):
            self._leaving.append(slot)
        return slot in self._most

    def settle(self) -> None:
        """Read what requests that have left put aside, before others take their slots and blocks."""
        leaving, self._leaving = self._leaving, []
        self._read(leaving)
        for slot in leaving:
            self._drafter.reset(slot)

    def _read(self, slots: list[int]) -> None:
        for some in self._portions(slots):
            self._drafter.propose(self._missed(some, sum(self._most.pop(slot, 0) for slot in some)))
            self._count[self._on_device(some)] = 0

    def _portions(self, slots: list[int]) -> Iterator[list[int]]:
        """Slots whose unread tokens are few enough to be read at once."""
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
        """A reading of nothing, as large as one of so many slots: whatever is compiled on first use is there then."""
        self._drafter.propose(self._missed([self._state.padding_slot] * slots, rows))

    def _on_device(self, slots: list[int]) -> Tensor:
        padding = [self._state.padding_slot] * (round_up(len(slots)) - len(slots))
        return self._state.staging.send(np.array(slots + padding, np.int64))

    def _missed(self, slots: list[int], most: int) -> DraftInput:
        """A pass that has run these tokens and drafts nothing."""
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
    """Depths for which there are graphs; `at_once`, one guess takes as long as all."""
    return tuple(sorted({0, nodes} if at_once else {nodes, *(depth for depth in DEPTHS if depth < nodes)}))


def may_rest(runner: Runner, at_once: bool) -> None:
    """Before anything is captured: a drafter that is captured need not go all the way, and may rest.

    Other ranks would have to read what was put aside with the first, so there it never stops reading.
    """
    drafter = runner.drafter
    if drafter is None or drafter.on_host or drafter.saver is not None or runner.captured is None:
        return
    runner.depths = draft_depths(runner.nodes, at_once or drafter.branching)
    if runner.target.split is None:
        runner.aside = Aside(runner.state, drafter, runner.block_size)
