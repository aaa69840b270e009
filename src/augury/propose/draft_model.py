"""A small language model writes the draft, token by token, from a cache of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.model.load import load_target
from augury.model.store import resolve
from augury.model.target import KVCache, bytes_per_token
from augury.propose.base import Needs, Setting, Turn
from augury.propose.grow import Shape
from augury.propose.pick import make_pick
from augury.propose.rows import fresh_rows, level_rows, most_steps, step_rows
from augury.verify.sampling import Outcome
from augury.verify.tree import Draft, chain_parents


class ModelDrafter:
    """Reads what is new, then drafts a chain; rows of rejected drafts are written over."""

    name = "draft_model"
    needs = Needs()

    def __init__(self, config: SpeculativeConfig, setting: Setting) -> None:
        """Load the drafter next to its target."""
        assert config.model is not None
        self.nodes = config.num_speculative_tokens
        self.device = setting.target.device
        self.model = load_target(resolve(config.model), setting.dtype, self.device, setting.max_model_len)
        self.longest = min(config.max_model_len or self.model.max_position, self.model.max_position)
        self.vocab = min(self.model.vocab_size, setting.target.vocab_size)  # padding rows are nobody's tokens
        self._pick = make_pick(config, self.device)
        self._tree = Shape.of(config)
        self.branching = self._tree is not None
        self._hands_on_laws = config.samples_drafts and config.rule != "coupled"
        # Rows of each slot whose token is certain to be the known one.
        self._cached = torch.zeros(setting.slots, dtype=torch.int64, device=self.device)

    @property
    def bytes_per_token(self) -> int:
        """Cache bytes a token takes beside the target's."""
        return bytes_per_token(self.model.layer_shapes, self.model.cache_dtype)

    def allocate(self, rows: int, block_size: int) -> None:
        """Make the cache, as many rows as the target has."""
        self.model.cache = KVCache.allocate(self.model.layer_shapes, rows, self.model.cache_dtype, self.device)

    def propose(self, turn: Turn) -> Draft:
        """Read the new tokens of every group, draft for those that may."""
        # The last token was drawn by the target; those before it are old, or drafts of ours that were accepted.
        fits = turn.lengths <= self.longest
        begin = torch.minimum(self._cached[turn.slots], (turn.lengths - 1).clamp(min=0))
        count = torch.where(fits, turn.lengths - begin, 0)
        budget = torch.where(fits, torch.minimum(turn.budget, self.longest - turn.lengths), 0).clamp(min=0)
        logits = self.model.forward(fresh_rows(turn, begin, count).rows).logits
        if self._tree is not None:
            # A tree's rows are not in the order of the text: all but the known ones are read again.
            self._cached[turn.slots] = torch.where(fits, turn.lengths, begin)
            return self._as_tree(self._tree, turn, logits, budget)
        self._cached[turn.slots] = torch.where(fits, turn.lengths + (budget - 1).clamp(min=0), begin)
        return self._as_chain(turn, logits, budget)

    def _as_tree(self, tree: Shape, turn: Turn, logits: Tensor, budget: Tensor) -> Draft:
        def run(tokens: Tensor, states: Tensor | None, bits: Tensor, depth: int, number: int) -> tuple[Tensor, None]:
            scores = self.model.forward(level_rows(turn, tokens, bits, depth, number, budget > 0)).logits
            return scores[:, : self.vocab].reshape(*tokens.shape, self.vocab), None

        return tree.grow(logits[:, : self.vocab], None, run, budget)

    def _as_chain(self, turn: Turn, logits: Tensor, budget: Tensor) -> Draft:
        steps = most_steps(budget, self.nodes)
        tokens = torch.zeros(len(budget), self.nodes, dtype=torch.int64, device=self.device)
        laws = self._room_for_laws(len(budget))
        for i in range(steps):
            picked = self._pick(logits[:, : self.vocab].contiguous(), turn.slots, turn.lengths + i, turn.sampling, i)
            tokens[:, i] = picked.tokens
            if laws is not None and picked.law is not None:
                laws[:, i] = picked.law
            if i + 1 < steps:
                logits = self.model.forward(step_rows(turn, picked.tokens, i, budget > i + 1)).logits
        return Draft(tokens, chain_parents(len(budget), self.nodes, self.device), budget, laws, branching=False)

    def _room_for_laws(self, groups: int) -> Tensor | None:
        if not self._hands_on_laws:
            return None
        return torch.zeros(groups, self.nodes, self.vocab, device=self.device)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""

    def admit(self, slot: int, prompt_len: int, cached: int, tenant: str) -> None:
        """What the target found in its prefix cache lies in our rows as well."""
        self._cached[slot] = cached

    def reset(self, slot: int) -> None:
        """Forget a slot: its request has left."""
        self._cached[slot] = 0
