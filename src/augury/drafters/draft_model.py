"""A small language model writes the draft from a cache of its own: token by token, as a tree, or all at once (PARD)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.facts import read_facts
from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import Needs, Setting, Turn
from augury.drafters.chain import ChainWriter
from augury.drafters.checkpoint import find_drafter
from augury.drafters.grow import Shape
from augury.drafters.rows import fresh_rows, level_rows, most_steps, step_rows
from augury.drafters.vocabulary import SharedVocabulary
from augury.model.heads.eagle3 import mask_token
from augury.model.load import load_target
from augury.model.target import KVCache, Rows, bytes_per_token
from augury.verify.sampling import Outcome
from augury.verify.tree import Draft


class ModelDrafter:
    """Reads what is new, then drafts; rows of rejected drafts are written over."""

    name = "draft_model"
    needs = Needs()
    on_host = False

    def __init__(self, config: SpeculativeConfig, setting: Setting) -> None:
        """Load the drafter next to its target."""
        directory, target = find_drafter(config, setting.dummy), setting.target
        self.device, self.nodes = target.device, config.num_speculative_tokens
        self.model = load_target(directory, setting.dtype, self.device, setting.max_model_len, dummy=setting.dummy)
        self.longest = min(config.max_model_len or self.model.max_position, self.model.max_position)
        sizes = target.vocab_size, self.model.vocab_size
        mixed = config.use_heterogeneous_vocab
        self.shared = SharedVocabulary(setting.directory, directory, sizes, self.device) if mixed else None
        self.vocab = target.vocab_size if mixed else min(sizes)  # padding rows are nobody's tokens
        self.lacks_rows = sizes[1] < sizes[0]  # somebody may send the numbers of padded rows all the same
        self._chain = ChainWriter(config, self.vocab, self.device)
        self._tree = Shape.of(config, self.vocab)
        self.branching = self._tree is not None
        facts = read_facts(str(directory))
        self._mask = mask_token(dict(facts.raw)) if config.parallel_drafting and facts else None
        if config.parallel_drafting and self._mask is None:
            raise ConfigError(
                "speculative_config.parallel_drafting=True needs a draft model trained for it (PARD, with pard_token "
                "in its config.json); leave it out for this one."
            )
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
        if not turn.chunked and self._tree is None and self._mask is None:
            # At most a draft's last token, if it was accepted, and the token after it.
            turn = replace(turn, most_rows=min(turn.most_rows, 2 * len(turn.slots)))
        masks = self.nodes - 1 if self._mask is not None else 0
        logits = self._score(fresh_rows(turn, begin, count, masks=masks, mask=self._mask or 0).rows)
        # A chain's rows are in the order of the text; those of a tree or of masks are not, and are read again.
        written = (budget - 1).clamp(min=0) if self._tree is None and self._mask is None else 0
        self._cached[turn.slots] = torch.where(fits, turn.lengths + written, begin)
        if self._mask is not None:
            return self._chain.at_once(turn, logits, budget)
        if self._tree is not None:
            return self._as_tree(self._tree, turn, logits, budget)
        return self._one_by_one(turn, logits, budget)

    def _score(self, rows: Rows) -> Tensor:
        """Logits of the wanted rows over the target's vocabulary."""
        if self.shared is None:
            if self.lacks_rows:
                rows.tokens = torch.where(rows.tokens < self.model.vocab_size, rows.tokens, 0)
            return self.model.forward(rows).logits[:, : self.vocab]
        rows.tokens = self.shared.read(rows.tokens)
        return self.shared.write(self.model.forward(rows).logits)

    def _one_by_one(self, turn: Turn, logits: Tensor, budget: Tensor) -> Draft:
        draft, steps = self._chain.blank(len(budget)), most_steps(budget, self.nodes)
        for i in range(steps):
            tokens = self._chain.write(draft, turn, logits, i)
            if i + 1 < steps:
                logits = self._score(step_rows(turn, tokens, i, budget))
        draft.count = budget
        return draft

    def _as_tree(self, tree: Shape, turn: Turn, logits: Tensor, budget: Tensor) -> Draft:
        def run(tokens: Tensor, states: Tensor | None, bits: Tensor, depth: int, number: int) -> tuple[Tensor, None]:
            scores = self._score(level_rows(turn, tokens, bits, depth, number, budget))
            return scores.view(*tokens.shape, self.vocab), None

        return tree.grow(logits, None, run, budget)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""

    def admit(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        """What the target found in its prefix cache lies in our rows as well."""
        self._cached[slot] = cached

    def reset(self, slot: int) -> None:
        """Forget a slot: its request has left."""
        self._cached[slot] = 0
