"""What happens on the device: the target's forward pass, the verification of every draft, and the next drafts.

`launch` queues a pass and waits for nothing; the flight it returns lands when the pass is over. A pass may be launched
while the one before it is still in flight: for a request that draws in both, only the device knows how long its text
is by then, so its segment says `CONTINUES` instead of where it starts (see resume.py). If such a request has a
grammar, `launch` queues the target's part of the pass and `complete` the verification, once the grammar has consumed
what the pass before has drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from augury.drafters.base import Drafter
from augury.engine.advance import ScoredPass, StepOutput, decide, score
from augury.engine.aside import Aside
from augury.engine.backlog import Backlog
from augury.engine.capture import Captured
from augury.engine.flight import Flight
from augury.engine.judge import Judge
from augury.engine.look_up import LookUps
from augury.engine.masks import gather
from augury.engine.report import GroupReport, read
from augury.engine.request import Request
from augury.engine.resume import resume
from augury.engine.rows import RESTS, Segments, round_up
from augury.engine.scheduled import CONTINUES, ScheduledRequest
from augury.engine.settle import DraftLimits
from augury.engine.state import SlotState
from augury.engine.step_input import StepInput, packed
from augury.engine.step_shape import draft_input, step_shape
from augury.kernels.arrays import array_of
from augury.kernels.faces import face
from augury.kernels.verify import tree_depths
from augury.model.target import Target
from augury.observe.steps import Step
from augury.verify.tree import Draft, first_outside


class Runner:
    """Owns what lives on the device: weights, slots, drafter, rule, graphs."""

    def __init__(
        self,
        target: Target,
        state: SlotState,
        judge: Judge,
        drafter: Drafter | None,
        block_size: int,
        lookahead: int,
        capture: bool,
        nodes: int | None = None,
    ) -> None:
        self.target = target
        self.state = state
        self.judge = judge
        self.drafter = drafter
        self.block_size = block_size
        self._nodes = state.draft.tokens.shape[1] if nodes is None else nodes  # a pending draft may have room for more
        self.limits = DraftLimits(lookahead, drafter is not None and drafter.branching)
        self.captured = Captured(self.score, self.decide, state.padding_slot) if capture else None
        # Our own kernels look everything up by slot, so one graph serves every mix of requests.
        self.by_slot = face(target.device) == "triton"
        self.on_gpu = target.device.type == "cuda"
        self.drafter_seconds: float | None = None  # what the drafter took in the last pass, where the host can tell
        self.texts = LookUps(state, block_size)
        self.backlog: Backlog | None = None  # what the drafter has yet to read, if it may rest
        self.depths: tuple[int, ...] = ()  # draft depths of captured passes; empty: always the full depth
        self.aside: Aside | None = None  # what a captured drafter has yet to read, if it may rest

    @property
    def nodes(self) -> int:
        """Nodes of the drafter's largest draft."""
        return self._nodes if self.drafter is not None else 0

    def launch(self, scheduled: list[ScheduledRequest], step: Step) -> Flight:
        """Queue a pass for these; a drafter on the host drafts before this returns, a look-up after it has landed."""
        self.drafter_seconds = None
        flight = Flight(scheduled, step, self.prepare(scheduled))
        if self.aside is not None:
            self.aside.before(scheduled, flight.step_input.shape.draft_depth == RESTS)
        if self._awaits_masks(scheduled):
            flight.rest = self.begin(flight.step_input)
            return flight
        with self.together("run", flight.step_input):
            output = self.run(flight.step_input)  # the target's forward pass, and the verification of every draft
        self._follow_up(flight, output)
        return flight

    def complete(self, flight: Flight) -> None:
        """Queue the second half of a pass, if only the first was launched, as its masks are there now."""
        if flight.rest is None:
            return
        if self.state.masks is not None:
            self.state.masks.send()
        rest, flight.rest = flight.rest, None
        self._follow_up(flight, rest())

    def _follow_up(self, flight: Flight, output: StepOutput) -> None:
        """Run a drafter that is on the host, and queue the copy of the report to the host."""
        flight.output, flight.drafts = output, self.propose(flight.step_input, output)  # what to try next
        if not self.on_gpu:
            flight.step.drafter_seconds, flight.step.drafter_depth = self.drafter_seconds, self._levels(flight.step)
            flight.report = output.report
            return
        flight.report = self.state.staging.reserve(output.report.numel()).view(output.report.shape)
        flight.report.copy_(output.report, non_blocking=True)
        flight.landed = torch.cuda.Event()
        flight.landed.record()

    def _levels(self, step: Step) -> int:
        """How deep the drafter went: as deep as it was allowed to, unless it ended chains early."""
        chain = self.drafter.chain if self.drafter is not None else None
        return step.budget if chain is None or chain.confidence is None else min(step.budget, chain.confidence.ran)

    def _awaits_masks(self, scheduled: list[ScheduledRequest]) -> bool:
        """Whether a request's grammar has yet to consume what a pass in flight draws."""
        return any(item.start == CONTINUES and item.request.grammar is not None for item in scheduled)

    def together(self, order: str, step_input: StepInput) -> AbstractContextManager[None]:
        """Have other ranks run a pass, too, if there are any."""
        leader = self.state.leader
        return nullcontext() if leader is None else leader.together(order, *packed(step_input))

    def prepare(self, scheduled: list[ScheduledRequest]) -> StepInput:
        """Write new blocks to the block tables; choose the pass's shape, and pack what each request runs in it."""
        self.state.give_blocks([item.request for item in scheduled])
        groups, columns = round_up(len(scheduled)), [item.column(self.block_size) for item in scheduled]
        columns += [(self.state.padding_slot, *[0] * 7)] * (groups - len(scheduled))
        table = self.state.staging.reserve(8 * groups).view(8, groups)
        table.numpy()[:] = np.array(columns).T
        logits_rows = sum(s.scored + s.nodes for s in scheduled)
        shape = step_shape(self, scheduled, logits_rows)
        masks = None
        if self.state.masks is not None:
            self.state.masks.send()
        else:
            masks = gather(scheduled, shape.groups, self.target.device)
        rests = shape.steady and not any(s.nodes or s.request.allowed for s in scheduled)
        return StepInput(table, shape, logits_rows, len(scheduled), masks, rests)

    def padded(self, rows: int) -> int:
        """The rows, padding included, of a pass that needs so many."""
        return rows if self.target.any_size else round_up(rows)

    def run(self, step_input: StepInput) -> StepOutput:
        """Run a pass; a pure decode pass on a GPU is replayed from captured graphs."""
        return self.begin(step_input)()

    def begin(self, step_input: StepInput) -> Callable[[], StepOutput]:
        """Run the target's part of a pass; returns a function that does the rest."""
        # Masks that come with a pass are as many as its drafts: a graph would have no fixed place to read them from.
        if self.captured and step_input.masks is None and step_input.shape.steady:
            return partial(self.captured.finish, self.captured.begin(step_input, self.state.version))
        return partial(self.decide, step_input, self.score(step_input))

    def advance(self, step_input: StepInput) -> StepOutput:
        """Run a pass without graphs."""
        return self.decide(step_input, self.score(step_input))

    def score(self, step_input: StepInput) -> ScoredPass:
        """The target's part of a pass as a function of device tensors."""
        table = step_input.segments.to(self.target.device, non_blocking=True)
        segments = Segments.pack(resume(table, self.state) if self.state.tracks else table)
        features = self.drafter.needs.features if self.drafter is not None else ()
        shape, count = step_input.shape, step_input.logits_rows
        return score(self.target, self.state, features, segments, shape, count, self.block_size, step_input.masks)

    def decide(self, step_input: StepInput, scored: ScoredPass) -> StepOutput:
        """The verification of every draft, likewise; a drafter that is not on the host is part of it."""
        branching = step_input.shape.branching
        output = decide(self.target, self.state, self.judge, scored, branching, self.block_size, self.limits)
        if self.drafter is None or self.drafter.on_host:
            return output
        draft = self._draft(step_input, scored.seg, output)
        if draft is None:
            return output
        nodes = draft.count[:, None]
        depth = tree_depths(draft)[:, None] if self.drafter.branching else nodes
        written = [] if self.state.masks is None else [draft.tokens, draft.parents]  # for the next pass's grammars
        report = torch.cat([output.report, *written, scored.seg.nodes[:, None], nodes, depth], dim=1)
        return output._replace(draft=draft, report=report)

    def propose(self, step_input: StepInput, output: StepOutput) -> Draft | None:
        """Draft for every group that drew a token, unless the pass has done so already."""
        if self.drafter is None or self.drafter.looks_up or not self.drafter.on_host:
            return output.draft
        return self._draft(step_input, Segments.pack(step_input.segments.to(self.target.device)), output)

    def land(self, flight: Flight) -> list[GroupReport]:
        """Wait for a pass, and read what it reports."""
        draft = flight.output.draft
        width = 0 if draft is None or self.state.masks is None else draft.tokens.shape[1]
        return read(flight.land(), draft is not None, width)

    def look_up(self, flight: Flight, report: list[GroupReport]) -> None:
        """Draft from the text as it is after a pass, if that is all the drafter reads."""
        if self.drafter is not None and self.drafter.looks_up:
            flight.drafts = self.texts.after(flight, report, self.drafter, self.target.vocab_size)

    def waits_for(self, flight: Flight) -> bool:
        """Whether the host must see a pass before it can plan the next, because it drafts from that pass's tokens."""
        if self.drafter is None or not self.drafter.on_host:
            return False
        return flight.step.budget > 0 or not self.drafter.looks_up

    def _draft(self, step_input: StepInput, segments: Segments, output: StepOutput) -> Draft | None:
        """Run the drafter and write its drafts to the slots; None if it rests."""
        assert self.drafter is not None
        begun = time.perf_counter()
        if step_input.shape.draft_depth == RESTS:
            assert self.aside is not None
            return self.aside.skip(segments, output)
        inputs = draft_input(self.state, self.block_size, step_input, segments, output)
        if self.backlog is not None and step_input.rests and not self.backlog.full(inputs):
            if self.drafter.bytes_per_token:  # otherwise it keeps nothing of what it reads
                self.backlog.put_aside(inputs)
            self.state.draft.count.numpy()[step_input.segments[0].numpy()] = 0
            return None
        if self.backlog is not None and self.drafter.unread is None:
            inputs = self.backlog.hand_over(inputs, self.drafter)
        self.drafter.observe(output.outcome)
        draft = self.drafter.propose(inputs)
        if self.drafter.on_host:  # a file or a user's class may name tokens that the target does not have
            draft.count = torch.minimum(draft.count, first_outside(draft.tokens, self.target.vocab_size))
        self._leave_pending(draft, segments.slots)
        if not self.on_gpu:  # on a GPU the work is only queued by now
            self.drafter_seconds = time.perf_counter() - begun
        return draft

    def _leave_pending(self, draft: Draft, slots: Tensor) -> None:
        """Write drafts to the slots that they wait in."""
        pending, width = self.state.draft, draft.tokens.shape[1]  # a prediction may need more room than the drafter
        if face(slots.device) == "numba":
            from augury.kernels.pending_numba import leave_pending

            made = array_of(draft.tokens), array_of(draft.parents), array_of(draft.count), array_of(slots)
            leave_pending(*made, self.target.vocab_size, (pending.tokens, pending.parents, pending.count))
        else:
            pending.tokens[:, :width][slots], pending.parents[:, :width][slots] = draft.tokens, draft.parents
            pending.count[slots] = draft.count
        if draft.probs is not None:
            assert pending.probs is not None
            pending.probs[slots, :, : draft.probs.shape[2]] = draft.probs
        if self.drafter is not None and self.drafter.on_host and self.state.leader is not None:
            self.state.note("drafts", *(part.tolist() for part in (slots, draft.tokens, draft.parents, draft.count)))

    def admit(self, request: Request) -> None:
        """Tell the drafter, on every rank, of a request that has taken a slot."""
        told = request.slot, request.prompt_len, request.computed, request.tenant, str(request.arrival)
        self.introduce(*told)
        self.state.note("admit", *told)

    def introduce(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        """Tell this rank's drafter of a request."""
        self.texts.forget(slot)
        if self.aside is not None:
            self.aside.forget(slot)
        if self.drafter is not None:
            self.drafter.admit(slot, prompt_len, cached, tenant, request)
        if self.backlog is not None:
            self.backlog.admit(slot, prompt_len, tenant, request)

    def finish(self, slot: int, length: int) -> None:
        """Have the drafter forget a request that has ended."""
        assert self.drafter is not None
        self.leave(slot)
        self.state.note("leave", slot)
        self.texts.leave(slot, length, self.drafter)
        if self.aside is None or not self.aside.leave(slot):
            self.drafter.reset(slot)

    def settle(self) -> None:
        """Before slots are taken again: have the drafter read what requests put aside before they left."""
        if self.aside is not None:
            self.aside.settle()

    def leave(self, slot: int) -> None:
        """Note that a slot is left; what the drafter has not read stays with the blocks, for others that find them."""
        if self.backlog is not None:
            self.backlog.forget(slot)

    def let_rest(self) -> None:
        """Let the drafter rest: while no request drafts, it skips its forward pass, and reads the tokens later."""
        self.backlog = Backlog(self.state.padding_slot)
        self.state.note("rest")

    def copied(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Note that blocks were copied to host memory, whose lines have numbers below 0, or back."""
        if self.backlog is not None:
            self.backlog.copy(sources, targets)
