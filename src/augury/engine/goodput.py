"""How much to draft, decided for every request in every step: whatever yields the most tokens per second here.

A request's next row is worth the chance that its draft is accepted that far; a pass costs what its rows cost. Rows go
where they are worth most, until another would lower the tokens per second of the whole pass. Where no draft pays, a
pass is plain decoding, and the drafter rests (skips its forward pass). A request without drafts is probed with a short
one now and then, ever less often while that changes nothing, so that a change of text is noticed.
"""

from __future__ import annotations

import logging
import math
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from augury.config.per_request import SpecOptions
from augury.drafters.confidence import Confidence, Prices
from augury.engine.cost import DepthCost, DraftCost, Floats, RowCost
from augury.engine.odds import IN_RUNS, Odds, Trust
from augury.engine.paired import Paired, PairedSpeedup
from augury.engine.request import Request
from augury.kernels.budget_numba import begin_drafts, longest_without, share_rows
from augury.observe.steps import Step

logger = logging.getLogger("augury")
GAIN = 1.01  # a draft must promise this factor over none: costs are not known more precisely
REPAID = 32  # steps within which drafts must also repay the awakening of a captured drafter
SOON, LATE = 8, 32  # steps without drafts before a request is probed again, at first and at most
PROBE = 2  # tokens of a probe
LOOKS = 4  # passes for which a decision holds, while no draft is verified and no request joins or leaves
PROBES_MAY_COST = 0.005  # of the time: one request is probed at a time, less often where rows are expensive
WAKES = 4  # awakenings of a drafter over which their price is averaged
PAUSE, JUDGED = 1024, 16  # steps of a higher bar, or without drafts, where so many pairs show that drafts lose


class Costs(NamedTuple):
    """Measured costs of passes."""

    target: RowCost
    drafter: DraftCost | DepthCost

    def drafting(self, depth: Floats, requests: int | Floats) -> Floats:
        """Seconds to draft to a depth for a number of requests, at the machine's present speed."""
        found: Floats = self.drafter(depth, requests) * self.target.pace
        return found

    def of_drafter(self, step: Step) -> float | None:
        """Seconds of a pass that were the drafter's: measured, or known if it is captured; None: it did not run."""
        if step.drafter_seconds is not None or not step.budget or not isinstance(self.drafter, DepthCost):
            return step.drafter_seconds
        return float(self.drafting(np.array([step.budget]), step.requests)[0])

    def learn_drafting(self, depth: int, requests: int, seconds: float) -> None:
        """Learn from the time of a call of the drafter."""
        self.drafter.learn(depth, requests, seconds / self.target.pace)


class Rehearsed(NamedTuple):
    """What `rehearse` takes for a request."""

    slot: int
    tenant: str = ""
    spec_options: SpecOptions = SpecOptions()


class RaisedBar(NamedTuple):
    """What drafts must promise at a load where they were measured to lose."""

    until: int  # step
    factor: float  # over none; infinite: they are not tried


NO_BAR = RaisedBar(0, 1.0)


class GoodputBudget:
    """Gives rows to the requests for which they pay most."""

    def __init__(
        self,
        nodes: int,
        slots: int,
        costs: Costs,
        branching: bool = False,
        slice_every: int = 64,
        trust: Trust = IN_RUNS,
        confidence: Confidence | None = None,
        waking: float = 0.0,
    ) -> None:
        self.nodes = nodes
        self.costs = costs
        self.odds = Odds(slots, nodes, trust)
        self.paired = Paired()
        self._branching = branching
        self.confidence = confidence
        self._slice_every = slice_every
        self._steps = 0
        self._decodes = 0  # requests of the pass, if it does nothing but decode
        self.sampling = self._sliced = False
        self._bars: dict[int, RaisedBar] = {}  # by number of requests: where drafts were measured to lose
        self._bar = 1.0  # the factor by which they must promise more in this pass
        self._quiet = np.zeros(slots, dtype=np.int64)  # steps since a slot last drafted
        self._patience = np.full(slots, SOON)  # steps it is left without
        self._credit = 1.0  # passes that probes may still cost
        self._saved_for = 1.0  # passes: what a probe costs that waits for credit
        self._rested = False  # whether the drafter read nothing in the pass before
        self._awakening = waking  # of a captured one: known, and not part of what its calls take
        self._asleep = True  # whether nobody was to draft in the last pass
        self._passed, self._news = 0, True  # passes since the last look; whether something has happened since
        self._load = tuple[int, ...]()  # rows and slots of the last pass
        self._given = list[int]()  # what they could draft
        self._woken, self._waking = 0, waking  # how often, and seconds beyond those of drafting for what it reads first
        self._seen: list[tuple[int, int, int, int]] = []  # slot, nodes, accepted; and what counts as tried

    def rehearse(self) -> None:
        """Decide and learn once on a copy: what is compiled on first use must not keep the first requests waiting."""
        trial, requests = deepcopy(self), list[Any]([Rehearsed(0), Rehearsed(1)][: len(self._quiet)])
        for request in requests:
            trial.seat(request)
        for depth in (0, 1):
            trial.allow(requests, len(requests))
            for request in requests:
                trial.see(request, 1, 1)
            spent = None if isinstance(self.costs.drafter, DepthCost) else 1e-3
            trial.learn(Step(2, 2, 0, 1, 0.0, 1e-2, spent, 2, [(1, 1, 1)], drafter_depth=depth))

    def seat(self, request: Request) -> None:
        """Note that a request takes a slot."""
        self.odds.seat(request.slot, request.tenant)
        self._news = True
        self._quiet[request.slot], self._patience[request.slot] = 0, SOON

    def allow(self, requests: list[Request], rows: int) -> list[int]:
        """The most nodes that each request may draft in a pass that has `rows` rows besides drafts."""
        self._steps += 1
        self.sampling = self._sliced  # what is drafted in one pass is judged in the next
        self._decodes = len(requests) if rows == len(requests) else 0
        self._sliced = bool(self._slice_every) and self._steps % self._slice_every == 0
        if self._sliced:
            return [0] * len(requests)
        bar = self._bars.get(len(requests), NO_BAR)
        self._bar = bar.factor if bar.until > self._steps else 1.0
        if math.isinf(self._bar):
            self._asleep = True
            return [0] * len(requests)
        places = [request.slot for request in requests]
        if self._as_before((rows, *places)):
            return self._given
        slots = np.array(places)
        most = np.array([request.spec_options.at_most(self.nodes) for request in requests])
        given = np.minimum(self._share_out(self.odds.reach(slots), rows, most), most)
        self._asleep = not given.any()
        self._news = False
        self._given = self._with_probe(given, slots, rows, most).tolist()
        self._passed = 0
        return self._given

    def _as_before(self, load: tuple[int, ...]) -> bool:
        """Whether the last decision, a moment ago, still holds: a new one costs 1 % of a small pass."""
        self._passed += 1
        self._news |= load != self._load
        self._load = load
        return not self._news and self._passed < LOOKS

    def see(self, request: Request, depth: int, accepted: int) -> None:
        """Note how many tokens of a request's draft were accepted; `learn` records it with its pass."""
        tried = depth if self.confidence is None else request.spec_options.at_most(self.nodes)
        self._seen.append((request.slot, depth, accepted, tried))

    def learn(self, step: Step) -> None:
        """Learn from a pass: its time, and how many of its draft tokens were accepted."""
        if self.confidence is not None:  # a guess that it did not keep counts as one that failed
            self._seen += [(slot, 0, 0, self.nodes) for slot in self.confidence.take_empty()]
        if self._seen:
            # Contiguous also where there are many: compiled functions would be compiled again for others.
            slots, depth, accepted, tried = np.ascontiguousarray(np.array(self._seen).T)
            self.odds.see(slots, tried, accepted)
            self._quiet[slots] = 0
            self._seen.clear()
            self._news = True
            if self.confidence is not None:
                self.confidence.see(slots, depth, accepted)
        spent = self.costs.of_drafter(step)
        self.costs.target.learn(step.rows, step.seconds - (spent or 0.0))
        if spent is not None and step.drafter_depth and step.decoding_only and not self._passed:
            self._learn_drafting(step.drafter_depth, step.requests, spent)
        self._rested = not step.drafter_depth
        self.paired.enter(step, spent)
        found = self.paired.estimate(step.requests) if step.requests else None
        if found is not None:
            step.speedup = found.ratio, found.low, found.high
            self._pause_where_it_loses(step.requests, found)

    def _learn_drafting(self, depth: int, requests: int, seconds: float) -> None:
        if not self._rested:
            self.costs.learn_drafting(depth, requests, seconds)
            return
        beyond = seconds - float(self.costs.drafting(np.array([float(depth)]), requests)[0])
        self._woken = min(self._woken + 1, WAKES)
        self._waking += (max(beyond, 0.0) - self._waking) / self._woken

    def _share_out(self, reach: Floats, rows: int, most: np.ndarray) -> np.ndarray:
        reach = np.where(np.arange(self.nodes) < most[:, None], reach, 0.0)
        if self._branching:
            return self._all_or_none(reach, rows)
        if self.confidence is not None:
            return self._who_begins(self.confidence, reach, rows)
        return share_out(reach, rows, self.costs, self._decodes, self._gain(rows))

    def _gain(self, rows: int) -> float:
        """The factor that drafts must promise over none, with the cost of waking a drafter that rests."""
        repaid = self._awakening / REPAID / self.costs.target.of(rows, self._decodes) if self._asleep else 0.0
        return (GAIN + repaid) * self._bar

    def _all_or_none(self, reach: Floats, rows: int) -> np.ndarray:
        """Trees are grown whole: for all requests if that pays, or for none."""
        requests = len(reach)
        without = self._gain(rows) * requests / self.costs.target.of(rows, self._decodes)
        drafting = float(self.costs.drafting(np.array([self.nodes]), requests)[0])
        seconds = self.costs.target.of(rows + requests * self.nodes, self._decodes) + drafting
        pays = (requests + reach.sum()) / seconds > without
        return np.full(requests, self.nodes if pays else 0)

    def _who_begins(self, confidence: Confidence, reach: Floats, rows: int) -> np.ndarray:
        """Where drafts end by themselves: let those requests draft whose drafts promise most, as many as pay."""
        target, drafter = self.costs.target, self.costs.drafter
        assert isinstance(drafter, DraftCost)  # a captured drafter ends nothing early
        given, fit = np.zeros(len(reach), np.int64), drafter.fit
        known = confidence.rows, confidence.levels, target.sizes, target.seconds, fit, target.pace, self._gain(rows)
        confidence.prices = Prices(*begin_drafts(reach, float(rows), *known, given))
        return given * self.nodes

    def _with_probe(self, given: np.ndarray, slots: np.ndarray, rows: int, most: np.ndarray) -> np.ndarray:
        """Probe the request that has gone longest without drafts, if that is long enough and can be afforded."""
        self._credit = min(self._credit + PROBES_MAY_COST * self._passed, max(self._saved_for, 1.0))
        who = longest_without(given, most, slots, self._quiet, self._patience, SOON, self._passed)
        if who < 0:
            return given
        whole = self._branching or self.confidence is not None
        nodes = min(self.nodes if whole else PROBE, int(most[who]))
        price = self._price(rows + int(given.sum()), nodes, len(slots), given.max() == 0)
        self._saved_for = price
        if price <= self._credit:
            self._credit -= price
            self._patience[slots[who]] = min(2 * self._patience[slots[who]], LATE)
            given[who], self._news = nodes, True  # for one pass
        return given

    def _price(self, rows: int, nodes: int, requests: int, wakes: bool) -> float:
        """What a probe adds to a pass, in passes; with the drafter's time if no other request drafts."""
        levels = float(nodes)
        if self.confidence is not None:
            nodes, levels = math.ceil(self.confidence.rows), self.confidence.levels
        before, after = (self.costs.target.of(n, self._decodes) for n in (rows, rows + nodes))
        drafting = float(self.costs.drafting(np.array([levels]), requests)[0]) + self._waking if wakes else 0.0
        return (after - before + drafting) / before

    def _pause_where_it_loses(self, requests: int, found: PairedSpeedup) -> None:
        """Where drafts are slower than they promise, have them promise more; if they still are, pause speculation."""
        if found.high >= 1 or found.pairs < JUDGED:
            return
        before = self._bars.get(requests, NO_BAR)
        again = before.factor > 1 and self._steps < before.until + PAUSE
        factor = math.inf if again else found.ratio**-2  # short by as much again, at most
        self._bars[requests] = RaisedBar(self._steps + PAUSE, factor)
        self._news = True
        self.paired.forget(requests)
        measured = f"measured {found.ratio:.2f}x plain decoding (95 %: {found.low:.2f} to {found.high:.2f})"
        if again:
            logger.warning("speculation pauses at %d running requests: %s", requests, measured)
        else:
            said = "drafts must promise %.2fx plain decoding at %d running requests: %s"
            logger.warning(said, factor, requests, measured)


def share_out(reach: Floats, rows: int, costs: Costs, decodes: int = 0, gain: float = GAIN) -> np.ndarray:
    """Nodes for every request, from the chance that each of its positions is accepted, [requests, positions].

    For every depth the drafter may go to, the best rows are taken in order; the best of all these wins. `decodes` is
    the number of requests in a pass that does nothing but decode, `gain` what drafts must promise over none.
    """
    requests, positions = reach.shape
    drafting = costs.drafting(np.arange(1.0, positions + 1), requests)
    return share_rows(reach, rows, *costs.target.at(decodes), drafting, gain)  # type: ignore[no-any-return]
