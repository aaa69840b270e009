"""The loop: plan, one pass of the target, verdict, new drafts, commit."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import torch

from augury.drafters.base import Drafter, Turn
from augury.drafters.saver import Saver
from augury.engine.advance import Passed, advance
from augury.engine.budget import Budget
from augury.engine.capture import Captured
from augury.engine.judge import Judge
from augury.engine.masks import gather, prune
from augury.engine.request import Request
from augury.engine.rows import Segments, Shape, round_up, row_sizes
from augury.engine.scheduler import Scheduler, Share
from augury.engine.scoring import record_logprobs
from augury.engine.settle import Limits
from augury.engine.state import SlotState
from augury.engine.trace import trace_step
from augury.kernels.faces import face
from augury.kernels.verify import tree_depths
from augury.model.target import Target
from augury.observe.stats import EngineStats
from augury.observe.steps import Step
from augury.verify.sampling import Masks
from augury.verify.tree import Draft, first_outside


class Update(NamedTuple):
    """What a step added to one request."""

    request: Request
    tokens: list[int]
    accepted: int  # how many of them were drafts
    trace: dict[str, Any] | None = None  # the step laid open, if the request asked


class Work(NamedTuple):
    """A planned pass as the device wants it."""

    segments: torch.Tensor  # int64 [8, G], see Segments.pack
    shape: Shape
    lines: int  # lines in use
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
        self.saver = drafter if isinstance(drafter, Saver) else None
        self.budget = budget
        self.stats = stats
        self.limits = Limits(scheduler.lookahead, drafter is not None and drafter.branching)
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
        shares = self.scheduler.plan()  # who runs: prompt chunks, draft trees
        if not shares:
            return []
        self.in_step = [share.request for share in shares]
        self.last = self._begin(shares)
        work = self.prepare(shares)
        passed = self.run(work)  # one pass of the target, and the verdict on every draft
        drafts = self.propose(work, passed)  # what to try next
        updates = self.commit(shares, passed, drafts)  # text, stops, cache, metrics
        self.last.seconds = time.perf_counter() - self.last.begun
        return updates

    @torch.inference_mode()
    def warm_up(self, sizes: tuple[int, ...]) -> None:
        """Run passes of nothing but padding, so that no request waits for kernels to be compiled or loaded."""
        for size in sizes:
            blank = torch.zeros(8, 1, dtype=torch.int64)
            blank[0] = self.state.padding_slot
            for plain, greedy in ((True, True), (True, False), (False, False)):
                shape = Shape(1, size, min(size, 8), 128, plain, greedy, self.drafter is not None, False)
                self._advance(Work(blank, shape, 1, 1))
        warm_up = getattr(self.drafter, "warm_up", None)  # of those that look at tokens on the host
        if warm_up is not None:
            warm_up(self.target.device)

    @torch.inference_mode()
    def capture_graphs(self, most_groups: int, budget: int) -> None:
        """Capture every graph that decoding needs, so that no request waits for one; they may take `budget` bytes."""
        if self.captured is None or not self.looks_up:
            return
        branching, works = self.drafter is not None and self.drafter.branching, []
        for groups in sorted({round_up(n) for n in range(1, most_groups + 1)}, reverse=True):
            blank = torch.zeros(8, groups, dtype=torch.int64)
            blank[0] = self.state.padding_slot
            for rows in row_sizes(groups, self._nodes):
                shape = Shape(groups, rows, rows, 0, False, False, True, branching, True)
                works.append(Work(blank, shape, rows, groups))
        self.captured.fill(sorted(works, key=lambda work: -work.shape.rows), self.state.version, budget)

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.stats.prompt_tokens += request.prompt_len
        request.added_at = time.perf_counter()
        self.scheduler.add(request)

    def abort(self, request: Request) -> None:
        """Drop a request; its slot and blocks are free at once."""
        if request.finish_reason is None:
            request.finish_reason = "abort"
            self._finish(request)

    def prepare(self, shares: list[Share]) -> Work:
        """Write newcomers to their slots and new blocks to their tables; size the pass."""
        for request in self.scheduler.seated:
            self.state.seat(request)
            request.seated_at = request.seated_at or time.perf_counter()
            if self.drafter is not None:
                self.drafter.admit(
                    request.slot, request.prompt_len, request.computed, request.tenant, str(request.arrival)
                )
        self._write_tables(shares)
        table = torch.zeros(8, round_up(len(shares)), dtype=torch.int64)
        table[0] = self.state.padding_slot
        size, most = self.scheduler.block_size, self.last.budget
        columns = [
            (r.slot, s.start, s.known, s.nodes, s.scored, s.active, len(r.blocks) * size, r.wish.at_most(most))
            for s, r in ((share, share.request) for share in shares)
        ]
        table[:, : len(shares)] = torch.from_numpy(np.array(columns).T)
        lines = sum(s.scored + s.nodes for s in shares)
        shape = self._shape(shares, lines)
        return Work(table, shape, lines, len(shares), gather(shares, shape.lines, self.target.device))

    def _write_tables(self, shares: list[Share]) -> None:
        """Bring blocks that requests have been given since their last pass to the slots' tables, all in one copy."""
        fresh = [
            (request.slot, place, request.blocks[place])
            for request in (share.request for share in shares)
            for place in range(request.tabled, len(request.blocks))
        ]
        if fresh:
            slots, places, blocks = torch.from_numpy(np.array(fresh).T.copy()).to(self.target.device).unbind(0)
            self.state.block_tables[slots, places] = blocks
            for share in shares:
                share.request.tabled = len(share.request.blocks)

    def _begin(self, shares: list[Share]) -> Step:
        prompts = [min(s.known, s.request.prompt_len - s.start) for s in shares if s.start < s.request.prompt_len]
        rows = sum(s.known + s.nodes for s in shares)
        return Step(len(shares), rows, sum(prompts), self.budget.limit(len(shares)), time.perf_counter())

    def _shape(self, shares: list[Share], lines: int) -> Shape:
        groups, rows = round_up(len(shares)), round_up(sum(s.known + s.nodes for s in shares))
        branching = self.drafter is not None and self.drafter.branching
        steady = all(s.request.decoding for s in shares)
        if self.looks_up:
            if steady:  # the smallest graph that has room
                rows = next((size for size in row_sizes(groups, self._nodes) if size >= rows), rows)
            lines = rows if steady else round_up(max(1, lines))
            return Shape(groups, rows, lines, 0, False, False, True, branching, steady)
        drawing = [s.request.params for s in shares if s.active]
        reach = max(s.start + s.known + s.nodes for s in shares)
        whole = self.state.block_tables.shape[1] * self.scheduler.block_size
        return Shape(
            groups=groups,
            rows=rows,
            lines=round_up(max(1, lines)),
            span=min(max(128, 1 << (reach - 1).bit_length()), whole),
            plain=not any(p.edits_logits for p in drawing),
            greedy=all(p.greedy for p in drawing),
            drafted=any(s.nodes for s in shares),
            branching=branching,
            steady=steady,
        )

    @property
    def _nodes(self) -> int:
        """The largest draft."""
        return self.state.draft.tokens.shape[1] if self.drafter is not None else 0

    def run(self, work: Work) -> Passed:
        """The pass itself; a pure decode pass on a GPU is replayed from a captured graph."""
        # Masks come from the host, as many as there are drafts: a graph would have no fixed place to read them from.
        if self.captured and work.masks is None and work.shape.steady:
            return self.captured(work, self.state.version)
        return self._advance(work)

    def _advance(self, work: Work) -> Passed:
        """The pass as a function of device tensors; a drafter that never looks at the host is part of it."""
        segments = Segments.pack(work.segments.to(self.target.device))
        features = self.drafter.needs.features if self.drafter is not None else ()
        passed = advance(
            self.target,
            self.state,
            self.judge,
            features,
            segments,
            work.shape,
            work.lines,
            self.scheduler.block_size,
            self.limits,
            work.masks,
        )
        if self.drafter is None or self.drafter.on_host:
            return passed
        draft = self._draft(work, segments, passed)
        nodes = draft.count[:, None]
        depth = tree_depths(draft)[:, None] if self.drafter.branching else nodes
        return passed._replace(draft=draft, report=torch.cat([passed.report, nodes, depth], dim=1))

    def propose(self, work: Work, passed: Passed) -> Draft | None:
        """Draft for every group that drew a token, unless the pass has done so already."""
        if self.drafter is None or passed.draft is not None:
            return passed.draft
        return self._draft(work, Segments.pack(work.segments.to(self.target.device)), passed)

    def _draft(self, work: Work, segments: Segments, passed: Passed) -> Draft:
        """Ask the drafter, and leave the drafts in the slots."""
        assert self.drafter is not None
        begun = time.perf_counter()
        self.drafter.observe(passed.outcome)
        draft = self.drafter.propose(self._turn(work, segments, passed))
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

    def _turn(self, work: Work, segments: Segments, passed: Passed) -> Turn:
        nodes = self.state.draft.tokens.shape[1]
        whole = self.state.block_tables.shape[1] * self.scheduler.block_size
        most = work.shape.rows + (0 if work.shape.steady else 2 * work.shape.groups)
        return Turn(
            segments.slots,
            passed.settled.lengths,
            passed.settled.budget,
            self.state.history,
            self.state.sampling,
            self.state.block_tables,
            self.scheduler.block_size,
            most_rows=most,
            span=min(2 * max(work.shape.span, nodes), whole),
            chunked=not work.shape.steady,
            row_begin=passed.layout.row_begin,
            start=segments.start,
            known=segments.known,
            nodes=segments.nodes,
            path=passed.outcome.path,
            features=passed.scores.features,
        )

    def commit(self, shares: list[Share], passed: Passed, drafts: Draft | None) -> list[Update]:
        """Take the outcome to the host: text, stops, cache, counters."""
        self.stats.steps += 1
        report = passed.report.tolist()  # here the host waits for the pass
        nodes, depths = self._drafted(passed, report, drafts)
        updates = []
        for g, (share, (accepted, count, *emitted)) in enumerate(zip(shares, report, strict=False)):
            request = share.request
            kept = request.accept(emitted[:count], accepted)
            if request.params.logprobs is not None or request.scores_prompt:
                record_logprobs(request, share, g, kept, passed)
            self.scheduler.commit(share, accepted, kept)
            if kept:
                update = self._count(share, emitted[:kept], min(accepted, kept))
                if request.wish.trace:
                    traced = trace_step(share, g, passed, update.tokens, update.accepted, self.last)
                    update = update._replace(trace=traced)
                updates.append(update)
            request.draft_nodes, request.draft_depth = nodes[g], depths[g]
            if request.grammar is not None and kept and not request.finish_reason:
                prune(request, drafts, g, self.state)
            if request.finish_reason:
                self._finish(request)
        return updates

    def _drafted(self, passed: Passed, report: list[list[int]], drafts: Draft | None) -> tuple[list[int], list[int]]:
        """Nodes and depth of every new draft; those drafted in the pass come with its report."""
        if drafts is None:
            return [0] * len(report), [0] * len(report)
        if passed.draft is not None:
            return [line[-2] for line in report], [line[-1] for line in report]
        nodes = drafts.count.tolist()
        return nodes, tree_depths(drafts).tolist() if self.drafter is not None and self.drafter.branching else nodes

    def _count(self, share: Share, tokens: list[int], accepted: int) -> Update:
        self.stats.generation_tokens += len(tokens)
        self.last.generation_tokens += len(tokens)
        depth = min(share.nodes, share.request.draft_depth)
        if share.nodes:
            for spec in (self.stats.spec, share.request.spec):
                spec.observe(share.nodes, accepted, depth)
            self.last.drafts.append((share.nodes, accepted, depth))
            share.request.spec_steps.append((share.nodes, accepted))
        return Update(share.request, tokens, accepted)

    def _finish(self, request: Request) -> None:
        if self.drafter is not None and request.slot >= 0:
            if self.saver is not None:
                self.saver.finish(request)  # its blocks are still its own
            self.drafter.reset(request.slot)
        self.scheduler.finish(request)
        reason = request.finish_reason or "abort"
        self.stats.finished[reason] = self.stats.finished.get(reason, 0) + 1
        if not self.busy:
            self.scheduler.pool.check()
