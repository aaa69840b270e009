"""A small language model writes the draft from a cache of its own: token by token, as a tree, or all at once (PARD)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.facts import read_facts
from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import Drafter, DrafterSetup, DraftInput, Needs
from augury.drafters.chain import ChainWriter
from augury.drafters.checkpoint import find_drafter
from augury.drafters.grow import TreeShape
from augury.drafters.rows import fresh_rows, level_rows, most_steps, step_rows
from augury.drafters.vocabulary import SharedVocabulary
from augury.kernels.rows import Rows
from augury.model.heads.eagle3 import mask_token
from augury.model.load import load_target
from augury.model.target import KVCache, bytes_per_token
from augury.verify.tree import Draft


class ModelDrafter(Drafter):
    """Reads what is new, then drafts; rows of rejected drafts are overwritten."""

    name = "draft_model"
    keeps_drafts = True
    needs = Needs()
    on_host = False
    chain: ChainWriter

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Load the drafter next to its target."""
        directory, target = find_drafter(config, setup.dummy), setup.target
        self.device, self.nodes = target.device, config.num_speculative_tokens
        self.model = load_target(
            directory, setup.dtype, self.device, setup.max_model_len, dummy=setup.dummy, split=target.draft_split
        )
        if self.model.state_shapes:
            raise ConfigError(
                f"speculative_config.model={config.model!r} has recurrent layers, which cannot take a rejected draft "
                "back; use a draft model of attention alone, or another method."
            )
        self.longest = min(config.max_model_len or self.model.max_position, self.model.max_position)
        sizes = target.vocab_size, self.model.vocab_size
        mixed = config.use_heterogeneous_vocab
        self.shared = SharedVocabulary(setup.directory, directory, sizes, self.device) if mixed else None
        self.vocab = target.vocab_size if mixed else min(sizes)  # padding rows are not tokens
        self.lacks_rows = sizes[1] < sizes[0]  # a request may still hold ids of padded rows
        self.chain = ChainWriter(config, self.vocab, self.device)
        self._tree = TreeShape.of(config, self.vocab)
        self.branching = self._tree is not None
        facts = read_facts(str(directory))
        self._mask = mask_token(dict(facts.raw)) if config.parallel_drafting and facts else None
        if config.parallel_drafting and self._mask is None:
            raise ConfigError(
                "speculative_config.parallel_drafting=True needs a draft model trained for it (PARD, with pard_token "
                "in its config.json); leave it out for this one."
            )
        # Cache rows of each slot that are certain to hold the known tokens.
        self._cached = torch.zeros(setup.slots, dtype=torch.int64, device=self.device)

    @property
    def network(self) -> object | None:
        """See Drafter.network."""
        return self.model

    @property
    def bytes_per_token(self) -> int:
        """Cache bytes per token, besides the target's."""
        return bytes_per_token(self.model.layer_shapes, self.model.cache_dtype)

    def allocate(self, rows: int, block_size: int) -> None:
        """Allocate the cache, with as many rows as the target has."""
        self.model.cache = KVCache.allocate(self.model.layer_shapes, rows, self.model.cache_dtype, self.device)

    @property
    def stores(self) -> list[Tensor]:
        """See Drafter.stores."""
        return self.model.cache.stores

    def propose(self, inputs: DraftInput) -> Draft:
        """Read the new tokens of every group, draft for those that may."""
        # The last token was drawn by the target; those before it are old, or drafts of ours that were accepted.
        fits = inputs.lengths <= self.longest
        begin = torch.minimum(self._cached[inputs.slots], (inputs.lengths - 1).clamp(min=0))
        count = torch.where(fits, inputs.lengths - begin, 0)
        budget = torch.where(fits, torch.minimum(inputs.budget, self.longest - inputs.lengths), 0).clamp(min=0)
        if not inputs.chunked and self._tree is None and self._mask is None:
            # At most a draft's last token, if it was accepted, and the token after it.
            inputs = replace(inputs, most_rows=min(inputs.most_rows, 2 * len(inputs.slots)))
        steps = most_steps(inputs, budget, self.nodes)
        masks = self.nodes - 1 if self._mask is not None and steps else 0
        fresh = fresh_rows(inputs, begin, count, masks=masks, mask=self._mask or 0, read_only=not steps).rows
        # A chain's rows are in the order of the text; those of a tree or of masks are not, and are read again.
        written = (budget - 1).clamp(min=0) if self._tree is None and self._mask is None else 0
        self._cached[inputs.slots] = torch.where(fits, inputs.lengths + written, begin)
        logits = self._score(fresh)
        if not steps:
            return self.chain.none(inputs, budget)
        if self._mask is not None:
            return self.chain.at_once(inputs, logits.view(len(budget), self.nodes, -1), budget)
        if self._tree is not None:
            return self._as_tree(self._tree, inputs, logits, budget)
        return self._one_by_one(inputs, logits, budget, steps)

    def _score(self, rows: Rows) -> Tensor:
        """Logits of the wanted rows over the target's vocabulary."""
        if self.shared is None:
            if self.lacks_rows:
                rows.tokens = torch.where(rows.tokens < self.model.vocab_size, rows.tokens, 0)
            return self.model.forward(rows).logits[:, : self.vocab]
        rows.tokens = self.shared.read(rows.tokens)
        return self.shared.write(self.model.forward(rows).logits)

    def _one_by_one(self, inputs: DraftInput, logits: Tensor, budget: Tensor, steps: int) -> Draft:
        draft = self.chain.begin(inputs, budget)
        for i in range(steps):
            tokens = self.chain.write(draft, inputs, logits, i)
            if i + 1 == steps:
                break
            if not self.chain.goes_on():
                written = inputs.lengths + i  # rows of later guesses have not been run
                self._cached[inputs.slots] = torch.minimum(self._cached[inputs.slots], written)
                break
            logits = self._score(step_rows(inputs, tokens, i, budget))
        return self.chain.finish(draft)

    def _as_tree(self, tree: TreeShape, inputs: DraftInput, logits: Tensor, budget: Tensor) -> Draft:
        def run(tokens: Tensor, states: Tensor | None, bits: Tensor, depth: int, number: int) -> tuple[Tensor, None]:
            scores = self._score(level_rows(inputs, tokens, bits, depth, number, budget))
            return scores.view(*tokens.shape, self.vocab), None

        return tree.grow(logits, None, run, budget)

    def admit(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        """Note that what the target found in its prefix cache is in our rows as well."""
        self._cached[slot] = cached

    def discard(self, slot: int, length: int) -> None:
        """Note that the rows of its own draft do not hold the one that is tried instead."""
        self._cached[slot] = self._cached[slot].clamp(max=length)

    def reset(self, slot: int) -> None:
        """Forget a slot: its request has left."""
        self._cached[slot] = 0
