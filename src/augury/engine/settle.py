"""After the target's pass: verify the drafts, write what is emitted to the slots, and bound the next drafts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from augury.engine.judge import Judge
from augury.engine.rows import PassLayout, Segments
from augury.engine.state import SlotState
from augury.kernels.faces import face
from augury.kernels.slot_tables import SlotTables
from augury.verify.sampling import Outcome


class DraftLimits(NamedTuple):
    """What bounds a draft, besides what the table of segments allows each request."""

    lookahead: int = 0  # cache rows the drafter writes after the known text; 0: it writes none
    branching: bool = False  # drafts are trees: their number of nodes is not their depth


class Settled(NamedTuple):
    """What a pass decided, one line per group."""

    outcome: Outcome
    lengths: Tensor  # int64 [G]: tokens known now, those just emitted included
    budget: Tensor  # int64 [G]: nodes that may be drafted; 0 where nothing was drawn
    summary: Tensor  # int64 [G, N + 3]: accepted, emitted, the tokens: what the host reads of a pass, see report.py


def settle(
    judge: Judge, logits: Tensor, layout: PassLayout, state: SlotState, seg: Segments, limits: DraftLimits
) -> Settled:
    """Verify the drafts, append what is emitted to the history, and bound the next drafts."""
    kind = face(logits.device)
    if judge.draw is not None and (kind == "triton" or (kind == "numba" and judge.rates is None)):
        return _in_one_kernel(judge.draw(logits, layout.draws, state.sampling), judge, layout, state, seg, limits)
    outcome = judge(logits, layout, state.sampling, seg.slots)
    state.append(seg.slots, layout.ends, outcome)
    lengths = layout.ends + outcome.emitted_count
    if state.tracks:
        state.note_lengths(seg.slots, lengths, outcome)
    summary = torch.cat([outcome.accepted[:, None], outcome.emitted_count[:, None], outcome.emitted], dim=1)
    return Settled(outcome, lengths, _budget(outcome, lengths, state.limit[seg.slots], seg, limits), summary)


def _in_one_kernel(
    drawn: Tensor, judge: Judge, layout: PassLayout, state: SlotState, seg: Segments, limits: DraftLimits
) -> Settled:
    """One kernel for the walk and everything after it."""
    sampling = state.sampling
    slots = SlotTables(
        state.history, state.length, state.alive, state.limit, state.end_tokens, sampling.counts, sampling.seed
    )
    if face(drawn.device) == "numba":
        from augury.kernels import walk_numba

        walked = walk_numba.walk(drawn, layout.first, layout.draft, seg.table, slots, *limits)
    else:
        from augury.kernels import walk_triton

        walked = walk_triton.walk(drawn, layout.first, layout.draft, seg.table, slots, judge.rates, *limits)
    summary = walked.summary
    outcome = Outcome(summary[:, 2:], summary[:, 1], summary[:, 0], walked.path)
    return Settled(outcome, walked.lengths, walked.budget, summary)


def _budget(outcome: Outcome, lengths: Tensor, limit: Tensor, seg: Segments, limits: DraftLimits) -> Tensor:
    """Nodes that each group may draft next, int64 [G]."""
    remaining = torch.where(outcome.emitted_count > 0, limit - lengths, 0)
    if limits.branching:
        budget = torch.where(remaining > 1, seg.allowed, 0)
    else:
        budget = torch.minimum(remaining - 1, seg.allowed)  # the last token of a request needs no draft
    if limits.lookahead:  # the drafter writes to the request's blocks
        free = seg.reserved_rows - lengths
        if limits.branching:  # and a tree needs the rows of all its levels
            free = torch.where(free >= limits.lookahead, free, 0)
        budget = torch.minimum(budget, free)
    return budget.clamp(min=0)
