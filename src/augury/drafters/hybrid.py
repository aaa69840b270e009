"""Several drafters together: look-ups draft from the text, a model elsewhere, and routing decides which leads."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import Drafter, DrafterSetup, DraftInput, PassCosts, UnreadStore
from augury.drafters.confidence import Confidence, Prices
from augury.drafters.features import along_tracks
from augury.drafters.look_up import HostText, LookUpDrafter
from augury.drafters.routing import ASSUMED, STEP, DrafterScores, Guess, RoutingCosts
from augury.methods.registry import drafter_class
from augury.observe.stats import Parts
from augury.verify.sampling import Outcome
from augury.verify.tree import Draft, chain_parents

LOOKS = 8  # passes between two looks at what passes cost
FOLLOWS = 0.1  # weight of the newest draft in what is known of the model's speed


@dataclass(slots=True)
class Part:
    """One of the drafters."""

    name: str
    drafter: Drafter
    nodes: int
    scores: DrafterScores


@dataclass(slots=True)
class Pending:
    """The drafts made for a slot, and the length of the text they were made after."""

    length: int
    guesses: dict[str, Guess]  # by part, tried or not
    parts: Parts = ()


@dataclass(slots=True)
class LookUpChoice:
    """The look-up that promises most for one group, and whether it is preferred to the model."""

    part: Part
    guess: Guess
    length: int  # tokens that are worth drafting
    leads: bool


class HybridDrafter(Drafter):
    """Runs every look-up for every request; the model drafts where none of them leads, and only reads where one does.

    It routes on the host, so on a GPU none of it is captured.
    """

    name = "hybrid"

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Build every part."""
        self.nodes = config.max_nodes
        self.parts_of = [self._built(part, setup) for part in config.parts]
        self.look_ups = [part for part in self.parts_of if not part.scores.is_model]
        self.model = next((part for part in self.parts_of if part.scores.is_model), None)
        if self.model is not None:
            self.needs = self.model.drafter.needs
        self.looks_up = all(part.drafter.looks_up for part in self.parts_of)
        self._pending: dict[int, Pending] = {}  # by slot
        self.reads_late = self.model is not None
        self.pass_costs: PassCosts | None = None
        self._costs, self._step, self._slots = ASSUMED, STEP, setup.slots
        self._passes, self._requests = 0, -1

    @staticmethod
    def _built(part: SpeculativeConfig, setup: DrafterSetup) -> Part:
        build: Any = drafter_class(part.card)
        return Part(part.method, build(part, setup), part.max_nodes, DrafterScores(part.card.has_weights))

    def adapt(self, costs: PassCosts, unread: UnreadStore | None, ends_early: bool) -> None:
        """See Drafter.adapt."""
        self.pass_costs, self.unread = costs, unread if self.model is not None else None
        if ends_early and self.model is not None and self.model.drafter.chain is not None:
            self.model.drafter.chain.confidence = Confidence(self._slots, self.model.nodes)

    def draft_whole(self) -> None:
        """See Drafter.draft_whole."""
        if self.model is not None:
            self.model.drafter.draft_whole()

    @property
    def _confidence(self) -> Confidence | None:
        """What ends the model's drafts early."""
        chain = self.model.drafter.chain if self.model is not None else None
        return None if chain is None else chain.confidence

    @property
    def network(self) -> object | None:
        """See Drafter.network."""
        return None if self.model is None else self.model.drafter.network

    @property
    def bytes_per_token(self) -> int:
        """See Drafter.bytes_per_token."""
        return sum(part.drafter.bytes_per_token for part in self.parts_of)

    def allocate(self, rows: int, block_size: int) -> None:
        """See Drafter.allocate."""
        for part in self.parts_of:
            part.drafter.allocate(rows, block_size)

    @property
    def stores(self) -> list[Tensor]:
        """See Drafter.stores."""
        return [store for part in self.parts_of for store in part.drafter.stores]

    def warm_up(self, device: torch.device) -> None:
        """See Drafter.warm_up."""
        for part in self.parts_of:
            part.drafter.warm_up(device)

    def observe(self, outcome: Outcome) -> None:
        """See Drafter.observe."""
        for part in self.parts_of:
            part.drafter.observe(outcome)

    def admit(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        """See Drafter.admit."""
        self._forget(slot)
        for part in self.parts_of:
            part.drafter.admit(slot, prompt_len, cached, tenant, request)

    def reset(self, slot: int) -> None:
        """See Drafter.reset."""
        self._forget(slot)
        for part in self.parts_of:
            part.drafter.reset(slot)

    def discard(self, slot: int, length: int) -> None:
        """See Drafter.discard."""
        for part in self.parts_of:
            part.drafter.discard(slot, length)

    def close(self) -> None:
        """See Drafter.close."""
        for part in self.parts_of:
            part.drafter.close()

    def parts(self, slot: int) -> Parts:
        """See Drafter.parts."""
        return self._pending[slot].parts if slot in self._pending else ()

    def _forget(self, slot: int) -> None:
        self._pending.pop(slot, None)
        for part in self.parts_of:
            part.scores.forget(slot)

    def propose(self, inputs: DraftInput) -> Draft:
        """Learn from the new text, run the look-ups, then the model for the groups that none of them leads."""
        slots, lengths, budgets = inputs.slots.tolist(), inputs.lengths.tolist(), inputs.budget.tolist()
        text = HostText.of(inputs.slots, inputs.lengths, inputs.history, inputs.budget)
        self._learn(slots, lengths, text)
        self._costs = self._priced(sum(budget > 0 for budget in budgets))
        found = [(part, *self._asked(part, inputs, text)) for part in self.look_ups]
        choices: list[LookUpChoice | None] = []
        for g, slot in enumerate(slots):
            self._pending[slot] = Pending(lengths[g], {})
            choices.append(self._choose(slot, g, found, budgets[g]))
        drafted = self._by_model(inputs, choices, slots, budgets)
        tokens, counts = np.zeros((len(slots), self.nodes), np.int64), np.zeros(len(slots), np.int64)
        for g, slot in enumerate(slots):
            chain = self._chain(slot, choices[g], drafted[g], budgets[g])
            tokens[g, : len(chain)], counts[g] = chain, len(chain)
        device = inputs.history.device
        parents = chain_parents(len(slots), self.nodes, device)
        made = torch.from_numpy(tokens).to(device), parents, torch.from_numpy(counts).to(device)
        return Draft(*made, branching=False)

    def _priced(self, requests: int) -> RoutingCosts:
        """What drafts cost in a batch of so many requests that draft, where the engine measures passes."""
        if self.pass_costs is None:
            return ASSUMED
        self._passes += 1
        if requests != self._requests or self._passes % LOOKS == 0:
            self._requests = requests
            self._costs = RoutingCosts(self.pass_costs.with_more(max(requests, 1), self.nodes), self._step)
        return self._costs

    def _learn(self, slots: list[int], lengths: list[int], text: HostText) -> None:
        """Compare each draft with the text that came since."""
        judged: list[tuple[int, int, int]] = []  # slot, tokens and right ones of the model's drafts
        for slot, length, row in zip(slots, lengths, text.rows.tolist(), strict=True):
            pending = self._pending.get(slot)
            if pending is None or length <= pending.length:
                continue
            came = text.texts[row, pending.length : min(length, pending.length + self.nodes + 1)].tolist()
            for part in self.parts_of:
                guess = pending.guesses.get(part.name)
                if guess is not None:
                    right = part.scores.judge(slot, guess, came)
                    if part is self.model and guess.tokens:
                        judged.append((slot, min(len(guess.tokens), len(came)), right))
        if judged and self._confidence is not None:
            self._confidence.judge(*np.ascontiguousarray(np.array(judged).T))

    @staticmethod
    def _asked(part: Part, inputs: DraftInput, text: HostText) -> tuple[list[list[int]], list[int]]:
        """The tokens that a look-up drafts for every group, and how many of them are real."""
        if isinstance(part.drafter, LookUpDrafter):
            guesses = part.drafter.guess(*text[:4], np.minimum(text.budget, part.nodes))
            return guesses.tokens.tolist(), guesses.counts.tolist()
        draft = part.drafter.propose(replace(inputs, budget=inputs.budget.clamp(max=part.nodes)))
        return draft.tokens.tolist(), draft.count.tolist()

    def _choose(
        self, slot: int, g: int, found: list[tuple[Part, list[list[int]], list[int]]], budget: int
    ) -> LookUpChoice | None:
        best, most = None, 1.0
        for part, tokens, counts in found:
            guess = Guess(tokens[g][: counts[g]], part.scores.run(slot))
            if guess.tokens:
                self._pending[slot].guesses[part.name] = guess
                value, length = part.scores.promise(slot, guess.run, min(len(guess.tokens), budget), self._costs)
                if value > most:
                    best, most = LookUpChoice(part, guess, length, True), value
        if best is not None and self.model is not None:
            promised, _ = self.model.scores.promise(slot, 0, min(self.model.nodes, budget), self._costs)
            best.leads = most >= promised
        return best

    def _by_model(
        self, inputs: DraftInput, choices: list[LookUpChoice | None], slots: list[int], budgets: list[int]
    ) -> list[list[int]]:
        """What the model drafts for every group; where a look-up leads it only reads what is new, at once or later."""
        if self.model is None:
            return [[] for _ in choices]
        led = [choice is not None and choice.leads for choice in choices]
        budgets = [0 if lead else min(self.model.nodes, budget) for lead, budget in zip(led, budgets, strict=True)]
        if self.unread is not None:
            if any(led) and not inputs.chunked and not any(budgets) and not self.unread.full(inputs):
                if self.model.drafter.bytes_per_token:  # otherwise it keeps nothing of what it reads
                    self.unread.put_aside(along_tracks(inputs))
                return [[] for _ in choices]
            inputs = self.unread.hand_over(inputs, self.model.drafter)
        # After tokens that others drafted it may have more to read than after a draft of its own.
        inputs = replace(inputs, budget=torch.tensor(budgets, device=inputs.budget.device), chunked=True)
        confidence, begun = self._confidence, time.perf_counter()
        if confidence is not None:
            confidence.prices = self._model_prices(confidence, slots, budgets)
        draft = self.model.drafter.propose(inputs)
        lines = [line[:count] for line, count in zip(draft.tokens.tolist(), draft.count.tolist(), strict=True)]
        self._time_step(time.perf_counter() - begun, max(map(len, lines)) if confidence is None else confidence.ran)
        for slot, line, allowed in zip(slots, lines, budgets, strict=True):
            if allowed:
                ended = confidence is not None and len(line) < allowed
                self._pending[slot].guesses[self.model.name] = Guess(line, ended=ended)
        if confidence is not None:
            confidence.take_empty()  # counted by their guesses
        return lines

    def _model_prices(self, confidence: Confidence, slots: list[int], budgets: list[int]) -> Prices:
        """What a row and a level must bring to be worth their time, at the rate that the model promises."""
        assert self.model is not None
        scores, most, costs = self.model.scores, self.model.nodes, self._costs
        rate = sum(scores.promise(slot, 0, min(most, n), costs)[0] for slot, n in zip(slots, budgets, strict=True))
        at = round(confidence.rows)
        return Prices(rate * (costs.of(at + 2) - costs.of(at)) / 2, rate * costs.step)

    def _time_step(self, seconds: float, deep: int) -> None:
        """Follow what a token takes that the model drafts, if the engine says what a pass takes."""
        if self.pass_costs is not None and deep:
            measured = seconds / deep / self.pass_costs.shortest
            self._step += FOLLOWS * (min(measured, 2 * self._step) - self._step)  # a slow call says twice at most

    def _chain(self, slot: int, choice: LookUpChoice | None, drafted: list[int], budget: int) -> list[int]:
        """One group's chain: the leading look-up's, or the model's, extended by a look-up that agrees with it."""
        pending = self._pending[slot]
        if choice is not None and (choice.leads or not drafted):
            tokens = choice.guess.tokens[: choice.length]
            pending.parts = ((choice.part.name, len(tokens)),)
            return tokens
        if self.model is not None and drafted:
            pending.parts = ((self.model.name, len(drafted)),)
        if choice is None or not drafted or choice.guess.tokens[: len(drafted)] != drafted:
            return drafted
        more = self._left(slot, choice, len(drafted), budget)
        pending.parts = (*pending.parts, (choice.part.name, len(more)))
        return drafted + more

    def _left(self, slot: int, choice: LookUpChoice, drafted: int, budget: int) -> list[int]:
        """What a look-up adds to a draft that it agrees with, as if it had been right about those tokens already."""
        rest = choice.guess.tokens[drafted:budget]
        _, length = choice.part.scores.promise(slot, choice.guess.run + drafted, len(rest), self._costs)
        return rest[:length]
