"""The static shape of a pass, and the drafter's input after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.drafters.base import DraftInput
from augury.engine.advance import StepOutput
from augury.engine.rows import RESTS, Segments, StepShape, round_up, row_sizes
from augury.engine.scheduled import ScheduledRequest
from augury.engine.state import SlotState
from augury.engine.step_input import StepInput
from augury.methods.spec import MAX_NODES

if TYPE_CHECKING:
    from augury.engine.runner import Runner


def step_shape(runner: Runner, scheduled: list[ScheduledRequest], logits_rows: int) -> StepShape:
    """The static shape of a pass for these requests."""
    drafter = runner.drafter
    groups, rows = round_up(len(scheduled)), runner.padded(sum(s.num_new_tokens + s.nodes for s in scheduled))
    branching = drafter is not None and drafter.branching
    steady, adapted = all(s.steady for s in scheduled), any(s.request.lora is not None for s in scheduled)
    own_words = draws_apart(runner, scheduled)
    if steady and drafter is not None and drafter.keeps_drafts:
        # After drafts that were not its own, the drafter has more to read than a captured pass has room for.
        steady = not any(s.request.draft_parts for s in scheduled)
    if runner.by_slot:
        if steady:  # the smallest graph that has room
            rows = next((size for size in row_sizes(groups, runner.nodes, runner.depths) if size >= rows), rows)
        logits_rows = rows if steady else round_up(max(1, logits_rows))
        depth = _draft_depth(runner, scheduled, steady)
        return StepShape(groups, rows, logits_rows, 0, False, False, True, branching, steady, adapted, own_words, depth)
    drawing = [s.request.params for s in scheduled if s.active]
    reach = max(s.reach for s in scheduled)
    whole = runner.state.block_tables.shape[1] * runner.block_size
    return StepShape(
        groups=groups,
        rows=rows,
        logits_rows=runner.padded(max(1, logits_rows)),
        span=min(max(128, 1 << (reach - 1).bit_length()), whole),
        plain=not any(p.edits_logits for p in drawing),
        greedy=all(p.greedy for p in drawing),
        drafted=any(s.nodes for s in scheduled),
        branching=branching,
        steady=steady,
        adapted=adapted,
        own_words=own_words,
    )


def _draft_depth(runner: Runner, scheduled: list[ScheduledRequest], steady: bool) -> int:
    """How deep the drafter drafts: as deep as any request may, rounded up to a captured depth; or RESTS."""
    if not runner.depths:
        return MAX_NODES
    deepest = max(s.request.allowed for s in scheduled)
    if runner.aside is not None and steady and not deepest and not any(s.nodes for s in scheduled):
        return RESTS
    return next((depth for depth in runner.depths if depth >= deepest), runner.nodes)


def draws_apart(runner: Runner, scheduled: list[ScheduledRequest]) -> bool:
    """Whether each rank can draw from its share of the vocabulary: no request needs all logits to filter or score."""
    if runner.target.words is None or runner.judge.draw is None:
        return False
    return not any(s.request.watched or s.request.grammar or s.request.params.reads_all_logits for s in scheduled)


def draft_input(
    state: SlotState, block_size: int, step_input: StepInput, segments: Segments, output: StepOutput
) -> DraftInput:
    """The drafter's input after a pass."""
    nodes = state.draft.tokens.shape[1]
    whole = state.block_tables.shape[1] * block_size
    most = step_input.shape.rows + (0 if step_input.shape.steady else 2 * step_input.shape.groups)
    return DraftInput(
        segments.slots,
        output.settled.lengths,
        output.settled.budget,
        state.history,
        state.sampling,
        state.block_tables,
        block_size,
        most_rows=most,
        span=min(2 * max(step_input.shape.span, nodes), whole),
        chunked=not step_input.shape.steady,
        row_begin=output.layout.row_begin,
        start=segments.start,
        num_new_tokens=segments.num_new_tokens,
        nodes=segments.nodes,
        path=output.outcome.path,
        features=output.scores.features,
        most_nodes=step_input.shape.draft_depth,
    )
