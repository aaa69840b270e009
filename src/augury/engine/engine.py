"""The engine loop: plan, launch a forward pass, commit the results of the pass before it."""

from __future__ import annotations

import time
from collections import deque

import torch

from augury.drafters.base import Drafter
from augury.drafters.saver import Saver
from augury.engine.blame import end, run_again
from augury.engine.budget import Budget
from augury.engine.commit import Update, count, drafted, learn
from augury.engine.flight import Flight
from augury.engine.grammar import Ahead
from augury.engine.masks import keep_to_grammar, read_ahead
from augury.engine.predict import PREDICTED, draft_parts, predict
from augury.engine.report import GroupReport
from augury.engine.request import Request
from augury.engine.runner import Runner
from augury.engine.scheduled import CONTINUES, ScheduledRequest
from augury.engine.scheduler import Scheduler
from augury.engine.scoring import record_logprobs
from augury.engine.state import SlotState
from augury.engine.trace import trace_step
from augury.model.target import Target
from augury.observe.stats import EngineStats
from augury.observe.steps import Step

NO_STEP = Step(0, 0, 0, 0, 0.0)


class Engine:
    """Runs requests on one target, with or without a drafter: plain decoding is the same loop with empty drafts.

    The host schedules and handles text; the runner runs the forward passes. With `depth` 1 the host plans and launches
    a pass while the one before it is still running, so that the device need not wait for the host.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler, budget: Budget, stats: EngineStats, depth: int) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.budget = budget
        self.stats = stats
        self.depth = depth
        self._lost: tuple[list[ScheduledRequest], Exception] | None = None  # a pass whose second half failed
        self.flights: deque[Flight] = deque()  # passes in flight, oldest first
        self.last = NO_STEP  # the pass that landed in the last step
        self.in_step: list[Request] = []  # the requests of that pass, or of one that has failed
        self._landed = 0.0  # when the last pass landed; 0 if nothing has run since
        self._drafts = 0  # the most nodes that it let a request draft
        captured = self.runner.captured
        assert captured is None or not captured.graphs or self.runner.state.tracks == (depth > 0)
        self.runner.state.tracks = depth > 0

    @property
    def target(self) -> Target:
        """The target model."""
        return self.runner.target

    @property
    def state(self) -> SlotState:
        """The device's record of each request, by slot."""
        return self.runner.state

    @property
    def drafter(self) -> Drafter | None:
        """The drafter of this engine, or None."""
        return self.runner.drafter

    @property
    def saver(self) -> Saver | None:
        """The drafter's part that writes something at the end of every request."""
        return self.drafter.saver if self.drafter is not None else None

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    @torch.inference_mode()
    def step(self) -> list[Update]:
        """Launch a pass for all requests that can run, commit the one before it, and return what that one added."""
        self.in_step, self.last = [], NO_STEP
        scheduled = [] if self._must_land else self.scheduler.plan()  # which requests run: prompt chunks, draft trees
        if scheduled:
            self.in_step = [item.request for item in scheduled]
            try:
                self.flights.append(self.launch(scheduled))  # queued: nothing waits for it yet
            except Exception as error:
                return self._relaunch(scheduled, error)
        if self.flights and (not scheduled or self._must_land):
            return self.land()  # text, stops, cache, metrics
        if not self.flights:
            self._landed = 0.0
        return []

    @property
    def _must_land(self) -> bool:
        """Whether a pass must land before the next is launched: `depth` is reached, or a request needs the host."""
        if not self.flights or len(self.flights) > self.depth:
            return bool(self.flights)
        if self.saver is not None or any(self.runner.waits_for(flight) for flight in self.flights):
            return True
        bound = self.state.masks is None  # otherwise a pass can begin before its masks are made
        return any(r.in_flight and (r.needs_host or (bound and r.grammar)) for r in self.scheduler.running)

    def launch(self, scheduled: list[ScheduledRequest]) -> Flight:
        """Write newly admitted requests to their slots and queue a pass."""
        self.runner.settle()
        for request in self.scheduler.seated:
            self.seat(request)
        if self.scheduler.states is not None and self.target.cache.states is not None:
            self.target.cache.states.save_next(*self.scheduler.states.plan(scheduled))
        step = self._begin(scheduled)
        flight = self.runner.launch(scheduled, step)
        if self.runner.on_gpu and self.drafter is not None and self.drafter.looks_up:
            waits = self._landed and not self.flights  # the device has been idle for look-ups and what goes with them
            step.drafter_seconds = time.perf_counter() - self._landed if waits else 0.0
            step.drafter_depth = self._drafts if waits else 0
        self.scheduler.launched(scheduled)
        return flight

    def land(self) -> list[Update]:
        """Wait for the oldest pass in flight and commit its results."""
        flight = self.flights.popleft()
        self.in_step = [item.request for item in flight.scheduled]
        try:
            updates = self.commit(flight)
        except Exception as error:
            if self.flights and self.flights[-1].rest is not None:  # only its first half runs, which changes nothing
                self.scheduler.failed(self.flights.pop().scheduled)
            if self.flights:  # another pass builds on this one
                raise
            self.scheduler.failed(flight.scheduled)
            updates = run_again(self, flight.scheduled, error)
        if self._lost is not None:
            lost, self._lost = self._lost, None
            updates += run_again(self, *lost)
        self.last = flight.step
        if not self.busy:
            self.flights.clear()  # only requests that have ended are left in them
            self._landed = 0.0
        return updates

    def _complete(self) -> None:
        """Launch the second half of a pass that has waited for grammar masks after the one that has landed."""
        for flight in self.flights:
            try:
                self.runner.complete(flight)
            except Exception as error:
                self._lost = flight.scheduled, error
        if self._lost is not None:
            self.scheduler.failed(self.flights.pop().scheduled)

    def _relaunch(self, scheduled: list[ScheduledRequest], error: Exception) -> list[Update]:
        """Recover from a failed launch: commit the passes before it, then find the requests that make it fail."""
        updates = []
        while self.flights:
            updates += self.land()
        return updates + run_again(self, scheduled, error)

    def run_pass(self, scheduled: list[ScheduledRequest]) -> list[Update]:
        """Run one pass for these and wait for it; the host keeps nothing of it unless all of it succeeds."""
        flight = self.launch(scheduled)
        try:
            return self.commit(flight)
        except Exception:
            self.scheduler.failed(scheduled)
            raise

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

    def seat(self, request: Request, fresh: bool = True) -> None:
        """Write the host's record of a request to its slot; `fresh`: just admitted, so the drafter is told of it."""
        self.state.seat(request)
        if self.drafter is not None and self.drafter.looks_up:
            self.runner.texts.seat(request)
        request.seated_at = request.seated_at or time.perf_counter()
        if fresh:
            self._restore(request)
        if self.drafter is not None and fresh:
            self.budget.seat(request)
            self.runner.admit(request)

    def _restore(self, request: Request) -> None:
        """Load the recurrent state that was saved after the blocks found in the prefix cache, if any, into a slot."""
        if self.scheduler.states is not None and (line := self.scheduler.states.found(request)) >= 0:
            assert self.target.cache.states is not None
            self.target.cache.states.restore(request.slot, line, request.computed)

    def _begin(self, scheduled: list[ScheduledRequest]) -> Step:
        prompts = [
            min(s.num_new_tokens, s.request.prompt_len - s.start)
            for s in scheduled
            if CONTINUES < s.start < s.request.prompt_len
        ]
        known, requests = sum(s.num_new_tokens for s in scheduled), [s.request for s in scheduled]
        allowed = [0] * len(scheduled) if self.drafter is None else self.budget.allow(requests, known)
        for item, nodes in zip(scheduled, allowed, strict=True):
            item.request.allowed = 0 if item.request.follows else item.request.spec_options.at_most(nodes)
        rows = known + sum(s.nodes for s in scheduled)
        begun, sample = time.perf_counter(), self.budget.sampling
        return Step(len(scheduled), rows, sum(prompts), max(allowed), begun, sample=sample)

    def commit(self, flight: Flight) -> list[Update]:
        """Commit a pass's outcome on the host: text, stops, cache, counters. A request that fails here fails alone."""
        report = self.runner.land(flight)  # here the host waits for the pass
        now = time.perf_counter()
        flight.step.seconds, self._landed = now - (self._landed or flight.step.begun), now
        self._drafts = flight.step.budget
        if self.state.leader is not None:
            self.state.leader.ranks.check()  # the results of a pass that lost a rank are void
        self.runner.look_up(flight, report)
        nodes, depths = drafted(flight, report, self.drafter is not None and self.drafter.branching)
        predicted = predict(flight, report, nodes, depths, self.state, self.drafter)
        ahead = read_ahead(flight, report, nodes, predicted, self.state)
        self.stats.steps += 1
        updates, guilty = dict[Request, Update](), dict[Request, Exception]()
        for g, (item, told) in enumerate(zip(flight.scheduled, report, strict=False)):
            if item.epoch != item.request.epoch:
                continue  # it has left its slot since
            try:
                update = self._commit(item, g, told, flight)
                item.request.draft_parts = draft_parts(self.drafter, item.request.slot, nodes[g], g in predicted)
                self._note_draft(item.request, nodes[g], depths[g], ahead.get(g) if update is not None else None)
                if update is not None:
                    updates[item.request] = update
            except Exception as error:
                guilty[item.request] = error
        learn(self.budget, flight.step)
        self._complete()
        return list((updates | self._let_go(flight, guilty)).values())

    def _let_go(self, flight: Flight, guilty: dict[Request, Exception]) -> dict[Request, Update]:
        """Take out ended and failed requests, once the whole of the next pass is launched, as it reads their slots."""
        failed = {}
        for request in (item.request for item in flight.scheduled if item.epoch == item.request.epoch):
            try:
                if request in guilty:
                    raise guilty[request]
                self.finish(request) if request.finish_reason else self.scheduler.switch(request)
            except Exception as error:
                failed[request] = end(self, request, error)
        return failed

    def _commit(self, item: ScheduledRequest, g: int, told: GroupReport, flight: Flight) -> Update | None:
        request, emitted = item.request, told.emitted
        ran, nodes = item.start + item.num_new_tokens, item.nodes
        if item.start == CONTINUES:  # by now the host knows where it started; the report says what was pending
            ran, nodes = request.computed + bool(emitted), told.pending
            flight.step.rows -= item.nodes - nodes + (not emitted)
        emitted = emitted[: self.scheduler.sound(request, len(emitted))]
        accepted = min(told.accepted, len(emitted))
        kept = request.accept(emitted, accepted)
        if request.prediction is not None and kept < len(told.emitted):
            request.prediction.unread(kept)
        if request.params.logprobs is not None or request.scores_prompt:
            record_logprobs(request, item, g, kept, flight.output)
        self.scheduler.commit(request, ran, accepted, kept)
        if not kept:
            return None
        update = count(request, nodes, emitted[:kept], min(accepted, kept), self.stats, flight.step)
        if nodes and (PREDICTED, nodes) not in request.draft_parts:
            self.budget.see(request, min(nodes, request.draft_depth), update.accepted)
        if request.spec_options.trace:
            traced = trace_step(item, g, flight.output, update.tokens, update.accepted, flight.step)
            update = update._replace(trace=traced)
        return update

    def _note_draft(self, request: Request, nodes: int, depth: int, ahead: Ahead | None) -> None:
        """Record the pending draft, without the nodes that a grammar forbids."""
        request.draft_nodes, request.draft_depth = nodes, depth
        if ahead is not None and not request.finish_reason and not keep_to_grammar(request, ahead, self.state):
            self.scheduler.restart(request)  # its next pass has begun, and the results are useless

    def finish(self, request: Request) -> None:
        """Free the slot of a request that has ended, and count it."""
        try:
            if self.drafter is not None and request.slot >= 0:
                if self.saver is not None:
                    self.saver.finish(request)  # its blocks are still its own
                self.runner.finish(request.slot, request.length)
        finally:
            self.scheduler.finish(request)
            reason = request.finish_reason or "abort"
            self.stats.finished[reason] = self.stats.finished.get(reason, 0) + 1
        if not self.busy:
            self.scheduler.check()
