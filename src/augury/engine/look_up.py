"""Drafts from the text alone, looked up on the host between two passes.

The tokens of a pass come with its report, and on a GPU the host keeps a copy of every slot's text, so a look-up waits
only for the pass, and its drafts return in one copy. While no request may draft, nothing is looked up and a pass need
not land before the next is launched; the drafter catches up when it is called again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from augury.drafters.base import Drafter, DraftInput
from augury.drafters.look_up import LookUpDrafter
from augury.engine.report import GroupReport
from augury.engine.request import Request
from augury.kernels.arrays import lasting
from augury.verify.tree import Draft, first_outside

if TYPE_CHECKING:
    from augury.engine.flight import Flight
    from augury.engine.state import SlotState

NONE = torch.empty(0, dtype=torch.int64)


class LookUps:
    """The slots' texts on the host, and the look-ups in them."""

    def __init__(self, state: SlotState, block_size: int) -> None:
        self._state = state
        self._block_size = block_size
        self._on_host = state.history.device.type == "cpu"
        self._texts: Tensor | None = state.history if self._on_host else None
        self._unread: set[int] = set()  # slots whose drafter has missed something

    def seat(self, request: Request) -> None:
        """Write a request's text to its slot."""
        if not self._on_host:
            texts = self._table()
            texts[request.slot, : request.length] = torch.tensor(request.tokens)

    def after(self, flight: Flight, report: list[GroupReport], drafter: Drafter, vocab: int) -> Draft | None:
        """Draft after a pass that has landed, in the order of its requests; the drafts are left in the slots."""
        begun, draft = time.perf_counter(), None
        if not self._on_host:
            self._copy_texts(flight, report)
        if flight.step.budget:
            groups = self._groups(flight, report, drafter.branching)
            draft = self._drafted(drafter, np.array(groups), vocab)
            self._unread.difference_update(groups[0])
        else:
            self._leave_unread(flight, report)
        if self._on_host:  # on a GPU all that the device waits for counts, not the look-up alone: see Engine.launch
            flight.step.drafter_seconds, flight.step.drafter_depth = time.perf_counter() - begun, flight.step.budget
        return draft

    def _leave_unread(self, flight: Flight, report: list[GroupReport]) -> None:
        """No request may draft: the drafter reads these tokens later, and verified drafts are cleared."""
        here = [item for item in flight.scheduled if item.epoch == item.request.epoch]
        slots = [item.request.slot for item in here]
        self._unread.update(slots)
        if any(item.nodes for item in here):
            self._state.draft.count[self._there(torch.tensor(slots))] = 0
            self._state.note("drafts", slots, [], [], [0] * len(slots))

    def forget(self, slot: int) -> None:
        """Note that another request takes a slot."""
        self._unread.discard(slot)

    def leave(self, slot: int, length: int, drafter: Drafter) -> None:
        """When a request leaves its slot, have the drafter read what it has missed: others may draft from it."""
        if slot in self._unread:
            self._unread.discard(slot)
            self._ask(drafter, torch.tensor([slot]), torch.tensor([length]), torch.tensor([0]))

    def _copy_texts(self, flight: Flight, report: list[GroupReport]) -> None:
        """Add the tokens that a pass has emitted to the host's texts."""
        for item, told in zip(flight.scheduled, report, strict=False):
            request, emitted = item.request, told.emitted
            if emitted and item.epoch == request.epoch:
                end = request.length + len(emitted)
                self._table()[request.slot, request.length : end] = torch.tensor(emitted)

    def _groups(self, flight: Flight, report: list[GroupReport], branching: bool) -> tuple[list[int], ...]:
        """Slot, text length and node budget of every request; padding for one that has left."""
        slots, lengths, budget = [], [], []
        for item, told in zip(flight.scheduled, report, strict=False):
            request, emitted = item.request, len(told.emitted)
            here = item.epoch == request.epoch
            length = request.length + emitted if emitted else item.start + item.num_new_tokens
            left = request.max_len - length
            most = request.allowed if branching else min(left - 1, request.allowed)
            slots.append(request.slot if here else self._state.padding_slot)
            lengths.append(length if here else 0)
            budget.append(most if here and emitted and left > 1 else 0)
        return slots, lengths, budget

    def _drafted(self, drafter: Drafter, groups: np.ndarray, vocab: int) -> Draft:
        """Draft for slots, text lengths and budgets [3, G], and leave the drafts in the slots."""
        if self._on_host and self._state.leader is None and isinstance(drafter, LookUpDrafter):
            from augury.kernels.pending_numba import leave_pending

            slots, lengths, budget = groups
            pending, texts = self._state.draft, lasting(self._state.history)
            guesses = drafter.guess(texts, slots, slots, lengths, budget)
            counts = leave_pending(*guesses, slots, vocab, (pending.tokens, pending.parents, pending.count))
            return guesses._replace(counts=counts).as_draft()
        seats, lengths, budget = map(torch.from_numpy, groups)
        draft = self._ask(drafter, seats, lengths, budget)
        draft.count = self._leave_in_slots(seats, draft, vocab)
        return draft

    def _ask(self, drafter: Drafter, slots: Tensor, lengths: Tensor, budget: Tensor) -> Draft:
        """Drafts as host tensors; a look-up reads no other field of its input."""
        state = self._state
        return drafter.propose(
            DraftInput(
                slots,
                lengths,
                budget,
                self._table(),
                state.sampling,
                state.block_tables,
                self._block_size,
                most_rows=0,
                span=0,
                row_begin=NONE,
                start=NONE,
                num_new_tokens=NONE,
                nodes=NONE,
                path=NONE,
            )
        )

    def _leave_in_slots(self, slots: Tensor, draft: Draft, vocab: int) -> Tensor:
        """Write drafts to their slots, each up to its first token outside the vocabulary; returns their lengths."""
        pending, width = self._state.draft, draft.tokens.shape[1]
        count = torch.minimum(draft.count, first_outside(draft.tokens, vocab))
        parts = [slots[:, None], count[:, None], draft.tokens, draft.parents]
        sent = self._there(torch.cat(parts, dim=1))
        at = sent[:, 0]
        pending.count[at] = sent[:, 1]
        pending.tokens[:, :width][at] = sent[:, 2 : 2 + width]
        pending.parents[:, :width][at] = sent[:, 2 + width :]
        if self._state.leader is not None:
            told = (part.tolist() for part in (slots, draft.tokens, draft.parents, count))
            self._state.note("drafts", *told)
        return count

    def _there(self, values: Tensor) -> Tensor:
        return self._state.staging.send(values.numpy())

    def _table(self) -> Tensor:
        if self._texts is None:
            self._texts = torch.zeros(self._state.history.shape, dtype=torch.int64)
        return self._texts
