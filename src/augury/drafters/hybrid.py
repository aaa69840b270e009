"""Several drafters together: look-ups draft from the text, a model elsewhere, and routing decides which leads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import Drafter, DrafterSetup, DraftInput
from augury.drafters.routing import DrafterScores, Guess
from augury.methods.registry import drafter_class
from augury.observe.stats import Parts
from augury.verify.sampling import Outcome
from augury.verify.tree import Draft, chain_parents


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

    @staticmethod
    def _built(part: SpeculativeConfig, setup: DrafterSetup) -> Part:
        build: Any = drafter_class(part.card)
        return Part(part.method, build(part, setup), part.max_nodes, DrafterScores(part.card.has_weights))

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
        self._learn(slots, lengths, inputs)
        found = [(part, *self._asked(part, inputs)) for part in self.look_ups]
        choices: list[LookUpChoice | None] = []
        for g, slot in enumerate(slots):
            self._pending[slot] = Pending(lengths[g], {})
            choices.append(self._choose(slot, g, found, budgets[g]))
        drafted = self._by_model(inputs, choices)
        draft = Draft.empty(len(slots), self.nodes)
        for g, slot in enumerate(slots):
            self._write(draft, g, slot, choices[g], drafted[g], budgets[g])
        device = inputs.history.device
        parents = chain_parents(len(slots), self.nodes, device)
        return Draft(draft.tokens.to(device), parents, draft.count.to(device), branching=False)

    def _learn(self, slots: list[int], lengths: list[int], inputs: DraftInput) -> None:
        """Compare earlier drafts with the text that was generated since."""
        since = [self._pending[slot].length if slot in self._pending else 0 for slot in slots]
        places = torch.tensor(since, device=inputs.history.device)[:, None]
        window = torch.arange(self.nodes + 1, device=places.device)
        text = inputs.history[inputs.slots[:, None], (places + window).clamp(max=inputs.history.shape[1] - 1)].tolist()
        for g, slot in enumerate(slots):
            came = lengths[g] - since[g]
            if slot in self._pending and came > 0:
                for part in self.parts_of:
                    guess = self._pending[slot].guesses.get(part.name)
                    if guess is not None:
                        part.scores.judge(slot, guess, text[g][:came])

    @staticmethod
    def _asked(part: Part, inputs: DraftInput) -> tuple[list[list[int]], list[int]]:
        """The tokens that a look-up drafts for every group, padded, and how many of them are real."""
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
                value, length = part.scores.promise(slot, guess.run, min(len(guess.tokens), budget))
                if value > most:
                    best, most = LookUpChoice(part, guess, length, True), value
        if best is not None and self.model is not None:
            promised, _ = self.model.scores.promise(slot, 0, min(self.model.nodes, budget))
            best.leads = most >= promised
        return best

    def _by_model(self, inputs: DraftInput, choices: list[LookUpChoice | None]) -> list[list[int]]:
        """What the model drafts for every group; where a look-up leads it only reads what is new."""
        if self.model is None:
            return [[] for _ in choices]
        led = [choice is not None and choice.leads for choice in choices]
        most = torch.tensor([0 if lead else self.model.nodes for lead in led], device=inputs.budget.device)
        # After tokens that others drafted it may have more to read than after a draft of its own.
        inputs = replace(inputs, budget=torch.minimum(inputs.budget, most), chunked=True)
        draft = self.model.drafter.propose(inputs)
        return [line[:count] for line, count in zip(draft.tokens.tolist(), draft.count.tolist(), strict=True)]

    def _write(
        self, draft: Draft, g: int, slot: int, choice: LookUpChoice | None, drafted: list[int], budget: int
    ) -> None:
        """Write one group's chain: the leading look-up's, or the model's, extended by a look-up that agrees with it."""
        pending = self._pending[slot]
        if choice is not None and (choice.leads or not drafted):
            tokens = choice.guess.tokens[: choice.length]
            pending.parts = ((choice.part.name, len(tokens)),)
        else:
            tokens = list(drafted)
            if self.model is not None and tokens:
                pending.guesses[self.model.name] = Guess(tokens)
                pending.parts = ((self.model.name, len(tokens)),)
            if choice is not None and tokens and choice.guess.tokens[: len(tokens)] == tokens:
                more = self._left(slot, choice, len(tokens), budget)
                tokens = tokens + more
                pending.parts = (*pending.parts, (choice.part.name, len(more)))
        draft.tokens[g, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        draft.count[g] = len(tokens)

    @staticmethod
    def _left(slot: int, choice: LookUpChoice, drafted: int, budget: int) -> list[int]:
        """What a look-up adds to a draft that it agrees with, as if it had been right about those tokens already."""
        rest = choice.guess.tokens[drafted:budget]
        _, length = choice.part.scores.promise(slot, choice.guess.run + drafted, len(rest))
        return rest[:length]
