"""The loop: plan, one pass of the target, verdict, new drafts, commit."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch

from augury.drafters.base import Drafter, DraftInput
from augury.engine.advance import StepOutput, advance
from augury.engine.blame import end, recover
from augury.engine.budget import Budget
from augury.engine.capture import Captured
from augury.engine.commit import Update, count, drafted
from augury.engine.grammar import Ahead
from augury.engine.judge import Judge
from augury.engine.masks import gather, prune, read_ahead
from augury.engine.request import Request
from augury.engine.rows import Segments, StepShape, round_up, row_sizes
from augury.engine.scheduler import ScheduledRequest, Scheduler
from augury.engine.scoring import record_logprobs
from augury.engine.settle import DraftLimits
from augury.engine.state import SlotState
from augury.engine.trace import trace_step
from augury.kernels.faces import face
from augury.kernels.verify import tree_depths
from augury.model.target import Target
from augury.observe.stats import EngineStats
from augury.observe.steps import Step
from augury.verify.sampling import Masks
from augury.verify.tree import Draft, first_outside


class StepInput(NamedTuple):
    """A planned pass as the device wants it."""

    segments: torch.Tensor  # int64 [8, G], see Segments.pack
    shape: StepShape
    logits_rows: int  # lines in use
    requests: int  # groups in use
    masks: Masks | None = None  # what grammars allow, if anyone has one


class Engine:
    """Runs requests on one target, with or without a drafter: plain decoding is the same loop with empty drafts."""

    def __init__(
        self,
        target: Target,
        state: SlotState,
        scheduler: Scheduler,
        judge: Judge,
        drafter: Drafter | None,
        budget: Budget,
        stats: EngineStats,
        capture: bool,
    ) -> None:
        self.target = target
        self.state = state
        self.scheduler = scheduler
        self.judge = judge
        self.drafter = drafter
        self.saver = drafter.saver if drafter is not None else None
        self.budget = budget
        self.stats = stats
        self.limits = DraftLimits(scheduler.lookahead, drafter is not None and drafter.branching)
        self.last = Step(0, 0, 0, 0, 0.0)  # what the last pass did
        self.in_step: list[Request] = []  # whose step it was, should it fail
        self.captured = Captured(self._advance, state.padding_slot) if capture else None
        # Our own kernels look everything up by slot, so one graph serves every mix of requests.
        self.looks_up = face(target.device) == "triton"

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    @torch.inference_mode()
    def step(self) -> list[Update]:
        """Run one pass for everyone who can run, and say what it added."""
        self.in_step = []
        scheduled = self.scheduler.plan()  # who runs: prompt chunks, draft trees
        if not scheduled:
            return []
        self.in_step = [item.request for item in scheduled]
        self.last = self._begin(scheduled)
        try:
            updates = self.run_pass(scheduled)
        except Exception as error:
            updates = recover(self, scheduled, error)
        self.last.seconds = time.perf_counter() - self.last.begun
        return updates

    def run_pass(self, scheduled: list[ScheduledRequest]) -> list[Update]:
        """One pass for these; nothing of it is kept on the host unless all of it succeeds."""
        step_input = self.prepare(scheduled)
        output = self.run(step_input)  # one pass of the target, and the verdict on every draft
        drafts = self.propose(step_input, output)  # what to try next
        return self.commit(scheduled, output, drafts)  # text, stops, cache, metrics

    @torch.inference_mode()
    def warm_up(self, sizes: tuple[int, ...]) -> None:
        """Run passes of nothing but padding, so that no request waits for kernels to be compiled or loaded."""
        for size in sizes:
            blank = torch.zeros(8, 1, dtype=torch.int64)
            blank[0] = self.state.padding_slot
            for plain, greedy in ((True, True), (True, False), (False, False)):
                shape = StepShape(1, size, min(size, 8), 128, plain, greedy, self.drafter is not None, False)
                self._advance(StepInput(blank, shape, 1, 1))

    @torch.inference_mode()
    def capture_graphs(self, most_groups: int, budget: int) -> None:
        """Capture every graph that decoding needs, so that no request waits for one; they may take `budget` bytes."""
        if self.captured is None or not self.looks_up:
            return
        branching, step_inputs = self.drafter is not None and self.drafter.branching, []
        for groups in sorted({round_up(n) for n in range(1, most_groups + 1)}, reverse=True):
            blank = torch.zeros(8, groups, dtype=torch.int64)
            blank[0] = self.state.padding_slot
            for rows in row_sizes(groups, self._nodes):
                shape = StepShape(groups, rows, rows, 0, False, False, True, branching, True)
                step_inputs.append(StepInput(blank, shape, rows, groups))
        self.captured.fill(
            sorted(step_inputs, key=lambda step_input: -step_input.shape.rows), self.state.version, budget
        )

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.stats.prompt_tokens += request.prompt_len
        request.added_at = time.perf_counter()
        self.scheduler.add(request)

    def abort(self, request: Request) -> None:
        """Drop a request; its slot and blocks are free at once."""
        if request.finish_reason is None:
            request.finish_reason = "abort"
            self.finish(request)

    def prepare(self, scheduled: list[ScheduledRequest]) -> StepInput:
        """Write newcomers to their slots and new blocks to their tables; size the pass."""
        for request in self.scheduler.seated:
            self.seat(request)
        self.state.give_blocks([item.request for item in scheduled])
        table = torch.zeros(8, round_up(len(scheduled)), dtype=torch.int64)
        table[0] = self.state.padding_slot
        size, most = self.scheduler.block_size, self.last.budget
        columns = [
            (
                r.slot,
                s.start,
                s.num_new_tokens,
                s.nodes,
                s.scored,
                s.active,
                len(r.blocks) * size,
                r.spec_options.at_most(most),
            )
            for s, r in ((item, item.request) for item in scheduled)
        ]
        table[:, : len(scheduled)] = torch.from_numpy(np.array(columns).T)
        logits_rows = sum(s.scored + s.nodes for s in scheduled)
        shape = self._shape(scheduled, logits_rows)
        return StepInput(
            table, shape, logits_rows, len(scheduled), gather(scheduled, shape.logits_rows, self.target.device)
        )

    def seat(self, request: Request, fresh: bool = True) -> None:
        """Write the host's record of a request to its slot; the drafter hears of it if it has just been admitted."""
        self.state.seat(request)
        request.seated_at = request.seated_at or time.perf_counter()
        if self.drafter is not None and fresh:
            self.drafter.admit(request.slot, request.prompt_len, request.computed, request.tenant, str(request.arrival))

    def _begin(self, scheduled: list[ScheduledRequest]) -> Step:
        prompts = [
            min(s.num_new_tokens, s.request.prompt_len - s.start) for s in scheduled if s.start < s.request.prompt_len
        ]
        rows = sum(s.num_new_tokens + s.nodes for s in scheduled)
        return Step(len(scheduled), rows, sum(prompts), self.budget.limit(len(scheduled)), time.perf_counter())

    def _shape(self, scheduled: list[ScheduledRequest], logits_rows: int) -> StepShape:
        groups, rows = round_up(len(scheduled)), round_up(sum(s.num_new_tokens + s.nodes for s in scheduled))
        branching = self.drafter is not None and self.drafter.branching
        steady = all(s.request.decoding for s in scheduled)
        if self.looks_up:
            if steady:  # the smallest graph that has room
                rows = next((size for size in row_sizes(groups, self._nodes) if size >= rows), rows)
            logits_rows = rows if steady else round_up(max(1, logits_rows))
            return StepShape(groups, rows, logits_rows, 0, False, False, True, branching, steady)
        drawing = [s.request.params for s in scheduled if s.active]
        reach = max(s.start + s.num_new_tokens + s.nodes for s in scheduled)
        whole = self.state.block_tables.shape[1] * self.scheduler.block_size
        return StepShape(
            groups=groups,
            rows=rows,
            logits_rows=round_up(max(1, logits_rows)),
            span=min(max(128, 1 << (reach - 1).bit_length()), whole),
            plain=not any(p.edits_logits for p in drawing),
            greedy=all(p.greedy for p in drawing),
            drafted=any(s.nodes for s in scheduled),
            branching=branching,
            steady=steady,
        )

    @property
    def _nodes(self) -> int:
        """The largest draft."""
        return self.state.draft.tokens.shape[1] if self.drafter is not None else 0

    def run(self, step_input: StepInput) -> StepOutput:
        """The pass itself; a pure decode pass on a GPU is replayed from a captured graph."""
        # Masks come from the host, as many as there are drafts: a graph would have no fixed place to read them from.
        if self.captured and step_input.masks is None and step_input.shape.steady:
            return self.captured(step_input, self.state.version)
        return self._advance(step_input)

    def _advance(self, step_input: StepInput) -> StepOutput:
        """The pass as a function of device tensors; a drafter that never looks at the host is part of it."""
        segments = Segments.pack(step_input.segments.to(self.target.device))
        features = self.drafter.needs.features if self.drafter is not None else ()
        output = advance(
            self.target,
            self.state,
            self.judge,
            features,
            segments,
            step_input.shape,
            step_input.logits_rows,
            self.scheduler.block_size,
            self.limits,
            step_input.masks,
        )
        if self.drafter is None or self.drafter.on_host:
            return output
        draft = self._draft(step_input, segments, output)
        nodes = draft.count[:, None]
        depth = tree_depths(draft)[:, None] if self.drafter.branching else nodes
        return output._replace(draft=draft, report=torch.cat([output.report, nodes, depth], dim=1))

    def propose(self, step_input: StepInput, output: StepOutput) -> Draft | None:
        """Draft for every group that drew a token, unless the pass has done so already."""
        if self.drafter is None or output.draft is not None:
            return output.draft
        return self._draft(step_input, Segments.pack(step_input.segments.to(self.target.device)), output)

    def _draft(self, step_input: StepInput, segments: Segments, output: StepOutput) -> Draft:
        """Ask the drafter, and leave the drafts in the slots."""
        assert self.drafter is not None
        begun = time.perf_counter()
        self.drafter.observe(output.outcome)
        draft = self.drafter.propose(self._draft_input(step_input, segments, output))
        if self.drafter.on_host:  # a file or a user's class may name tokens that the target does not have
            draft.count = torch.minimum(draft.count, first_outside(draft.tokens, self.target.vocab_size))
        pending, slots = self.state.draft, segments.slots
        pending.tokens[slots], pending.parents[slots], pending.count[slots] = draft.tokens, draft.parents, draft.count
        if draft.probs is not None:
            assert pending.probs is not None
            pending.probs[slots, :, : draft.probs.shape[2]] = draft.probs
        if self.target.device.type == "cpu":  # elsewhere the work is only queued by now
            self.last.drafter_seconds = time.perf_counter() - begun
        return draft

    def _draft_input(self, step_input: StepInput, segments: Segments, output: StepOutput) -> DraftInput:
        nodes = self.state.draft.tokens.shape[1]
        whole = self.state.block_tables.shape[1] * self.scheduler.block_size
        most = step_input.shape.rows + (0 if step_input.shape.steady else 2 * step_input.shape.groups)
        return DraftInput(
            segments.slots,
            output.settled.lengths,
            output.settled.budget,
            self.state.history,
            self.state.sampling,
            self.state.block_tables,
            self.scheduler.block_size,
            most_rows=most,
            span=min(2 * max(step_input.shape.span, nodes), whole),
            chunked=not step_input.shape.steady,
            row_begin=output.layout.row_begin,
            start=segments.start,
            num_new_tokens=segments.num_new_tokens,
            nodes=segments.nodes,
            path=output.outcome.path,
            features=output.scores.features,
        )

    def commit(self, scheduled: list[ScheduledRequest], output: StepOutput, drafts: Draft | None) -> list[Update]:
        """Take the outcome to the host: text, stops, cache, counters. A request that fails here fails alone."""
        report = output.report.tolist()  # here the host waits for the pass
        nodes, depths = drafted(output, report, drafts, self.drafter is not None and self.drafter.branching)
        ahead = read_ahead(scheduled, report, drafts, nodes)
        self.stats.steps += 1
        updates = []
        for g, (item, line) in enumerate(zip(scheduled, report, strict=False)):
            try:
                update = self._commit(item, g, line, output)
                self._leave_draft(item.request, nodes[g], depths[g], ahead.get(g) if update is not None else None)
            except Exception as error:
                update = end(self, item.request, error)
            if update is not None:
                updates.append(update)
        return updates

    def _commit(self, item: ScheduledRequest, g: int, line: list[int], output: StepOutput) -> Update | None:
        request, accepted, emitted = item.request, line[0], line[2 : 2 + line[1]]
        kept = request.accept(emitted, accepted)
        if request.params.logprobs is not None or request.scores_prompt:
            record_logprobs(request, item, g, kept, output)
        self.scheduler.commit(item, accepted, kept)
        if not kept:
            return None
        update = count(item, emitted[:kept], min(accepted, kept), self.stats, self.last)
        if request.spec_options.trace:
            traced = trace_step(item, g, output, update.tokens, update.accepted, self.last)
            update = update._replace(trace=traced)
        return update

    def _leave_draft(self, request: Request, nodes: int, depth: int, ahead: Ahead | None) -> None:
        """Note what is pending, without what a grammar forbids; a request that has ended leaves."""
        request.draft_nodes, request.draft_depth = nodes, depth
        if ahead is not None and not request.finish_reason:
            prune(request, ahead, self.state)
        if request.finish_reason:
            self.finish(request)

    def finish(self, request: Request) -> None:
        """Take a request that has ended out of its slot, and count it."""
        try:
            if self.drafter is not None and request.slot >= 0:
                if self.saver is not None:
                    self.saver.finish(request)  # its blocks are still its own
                self.drafter.reset(request.slot)
        finally:
            self.scheduler.finish(request)
            reason = request.finish_reason or "abort"
            self.stats.finished[reason] = self.stats.finished.get(reason, 0) + 1
        if not self.busy:
            self.scheduler.pool.check()
