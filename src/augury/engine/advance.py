"""A forward pass and the verification of its drafts, on device tensors only: eager on a CPU, captured on a GPU."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from augury.engine.judge import Judge
from augury.engine.masks import GroupMasks
from augury.engine.rows import PassLayout, Segments, StepShape, lay_out
from augury.engine.settle import DraftLimits, Settled, settle
from augury.engine.state import SlotState
from augury.kernels.faces import face
from augury.model.target import Target, TargetOutput
from augury.verify.sampling import Outcome
from augury.verify.tree import Draft


class StepOutput(NamedTuple):
    """The results of a pass."""

    layout: PassLayout
    scores: TargetOutput
    settled: Settled
    report: Tensor  # int64 [G, ...]: what the host reads of the pass; see report.py
    draft: Draft | None = None  # the next drafts, where the drafter is part of the pass

    @property
    def outcome(self) -> Outcome:
        """Accepted drafts and emitted tokens."""
        return self.settled.outcome


class ScoredPass(NamedTuple):
    """A target's forward pass whose drafts are not verified yet."""

    seg: Segments
    layout: PassLayout
    scores: TargetOutput


def score(
    target: Target,
    state: SlotState,
    features: tuple[int, ...],
    seg: Segments,
    shape: StepShape,
    count: int,
    block_size: int,
    masks: GroupMasks | None = None,
) -> ScoredPass:
    """Gather inputs from the state and run the target."""
    layout = lay_out(state, seg.table, shape, count, block_size)
    if masks is not None:
        layout.draws.masks = masks.place(layout.first, shape.logits_rows)
    return ScoredPass(seg, layout, target.forward(layout.rows, features))


def decide(
    target: Target,
    state: SlotState,
    judge: Judge,
    scored: ScoredPass,
    branching: bool,
    block_size: int,
    limits: DraftLimits,
) -> StepOutput:
    """Verify the drafts and write the emitted tokens back to the slot state."""
    seg, layout, scores = scored
    settled = settle(judge, scores.logits, layout, state, seg, limits)
    if branching:
        _move_path(target, state, seg, layout, settled.outcome, block_size)
    return StepOutput(layout, scores, settled, settled.summary)


def _move_path(
    target: Target, state: SlotState, seg: Segments, layout: PassLayout, outcome: Outcome, block_size: int
) -> None:
    """Move the KV rows of the accepted path right after those of the known tokens; other rows are overwritten later."""
    if target.cache.states is not None:
        target.cache.states.keep_path(seg.slots, outcome.path)
    if target.cache.pools is not None and face(seg.slots.device) == "triton":
        from augury.kernels.move_triton import move_path

        move_path(*target.cache.pools, outcome.path, layout.ends, seg.slots, state.block_tables, block_size)
        return
    step = torch.arange(outcome.path.shape[1], device=seg.slots.device)
    taken = outcome.path >= 0

    def physical(logical: Tensor) -> Tensor:
        block = state.block_tables[seg.slots[:, None], logical // block_size]
        return torch.where(taken, block * block_size + logical % block_size, 0).flatten()

    ends = layout.ends[:, None]
    target.cache.move(physical(ends + outcome.path.clamp(min=0)), physical((ends + step).expand_as(outcome.path)))
