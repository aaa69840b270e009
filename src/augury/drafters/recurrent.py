"""Drafting from hidden states: EAGLE, EAGLE-3 and MTP heads, token by token or all at once.

Each accepted token gives the head one row: (the token, the target's features of the token before it).
The row lies in the cache where the token's own row lies, so a block found again in the prefix cache brings it along;
the one row that spans two blocks needs the features of a block's last token, which are kept with the block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import Drafter, DrafterSetup, DraftInput, Needs
from augury.drafters.chain import ChainWriter
from augury.drafters.chain_call import MOST_ROWS, ChainCall
from augury.drafters.features import track_lengths, track_rows
from augury.drafters.grow import TreeShape
from augury.drafters.rows import UnreadRows, fresh_rows, level_rows, most_steps, physical, step_rows
from augury.kernels.faces import face
from augury.model.heads.block import RecurrentHead
from augury.model.target import KVCache, bytes_per_token
from augury.verify.tree import Draft

SHIFT = 1  # a row pairs a token with the feature before it


@dataclass(slots=True)
class HeadInput:
    """What a head has not read yet, one line per group: tokens begin .. begin + count - 1, packed in `fresh`."""

    inputs: DraftInput
    budget: Tensor  # int64 [G]: nodes that may be drafted, within the head's context length
    begin: Tensor  # int64 [G]
    count: Tensor  # int64 [G]
    carried: Tensor  # int64 [G]: 1 where the first row continues a block found in the prefix cache
    fresh: UnreadRows
    hidden: Tensor  # [R, H]: the target's features of the token before each row's


class RecurrentDrafter(Drafter):
    """What EAGLE, EAGLE-3 and MTP share; each of them loads a head."""

    name = ""
    on_host = False
    chain: ChainWriter

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup, head: RecurrentHead) -> None:
        """Take a loaded head."""
        self.head, self.device = head, setup.target.device
        self.needs = Needs(features=head.features)
        self.nodes = config.num_speculative_tokens
        self.longest = min(config.max_model_len or setup.max_model_len, setup.max_model_len)
        self.chain = ChainWriter(config, setup.target.vocab_size, self.device, head.targets)
        self._carried = torch.zeros(setup.slots, dtype=torch.int64, device=self.device)  # 1: see `admit`
        self._block_ends = torch.empty(0)  # [blocks, features]: those of each block's last token
        self._mask = self._parallel_mask(config)
        self._tree = TreeShape.of(config, setup.target.vocab_size if head.targets is None else len(head.targets))
        self.branching = self._tree is not None
        steps = self._mask is None and self._tree is None and not config.samples_drafts
        self._in_one_call = ChainCall.of(head, self.nodes, self.longest) if steps else None

    def _parallel_mask(self, config: SpeculativeConfig) -> int | None:
        """The mask token of a head that drafts everything in one pass; None: it drafts token by token."""
        if not config.parallel_drafting:
            return None
        mask, parts = getattr(self.head, "mask_token", None), getattr(self.head, "parts", None)
        if mask is None or parts is None or parts.mask_hidden is None:
            raise ConfigError(
                "speculative_config.parallel_drafting=True needs a head trained for it (P-EAGLE, with mask_token_id "
                "and mask_hidden); leave it out for this one."
            )
        return int(mask)

    @property
    def network(self) -> object | None:
        """See Drafter.network."""
        return self.head

    @property
    def bytes_per_token(self) -> int:
        """Cache bytes per token, besides the target's."""
        return bytes_per_token(self.head.layer_shapes, self.head.cache_dtype)

    def allocate(self, rows: int, block_size: int) -> None:
        """Allocate the cache, as many rows as the target has, and room for the features at the end of every block."""
        head = self.head
        head.cache = KVCache.allocate(head.layer_shapes, rows, head.cache_dtype, self.device)
        self._block_ends = torch.zeros(
            rows // block_size, head.feature_size, dtype=head.cache_dtype, device=self.device
        )

    @property
    def stores(self) -> list[Tensor]:
        """See Drafter.stores."""
        return [*self.head.cache.stores, self._block_ends]

    def propose(self, inputs: DraftInput) -> Draft:
        """Read the pairs that this pass made, then draft for the groups that may."""
        if self._in_one_call is not None and inputs.most_rows <= MOST_ROWS:
            return self._in_one_call(inputs, self._carried, self._block_ends, self.chain.confidence)
        fits = inputs.lengths <= self.longest
        budget = torch.where(fits, torch.minimum(inputs.budget, self.longest - inputs.lengths), 0).clamp(min=0)
        carried, tracks = self._carried[inputs.slots], track_lengths(inputs)
        count = torch.where(fits & (tracks > 0), tracks + carried, 0)
        steps = most_steps(inputs, budget, self.nodes)
        masks = self.nodes - 1 if self._mask is not None and steps else 0
        begin = inputs.start + 1 - carried
        fresh = fresh_rows(inputs, begin, count, SHIFT, masks, self._mask or 0, self._only_reads(steps))
        hidden = self.head.combine(self._streams(inputs, fresh, count, carried))
        self._carried.index_fill_(0, inputs.slots, 0)
        return self._draft(HeadInput(inputs, budget, begin, count, carried, fresh, hidden), steps)

    def _only_reads(self, steps: int) -> bool:
        """Whether no output of the head for the new tokens is used: it only fills its cache."""
        return not steps

    def _draft(self, new: HeadInput, steps: int) -> Draft:
        """Read what is new and draft `steps` deep; heads that run otherwise override this."""
        logits, onward = self.head.forward(new.fresh.rows, new.hidden, 0)
        if not steps:
            return self.chain.none(new.inputs, new.budget)
        if self._mask is not None:
            return self.chain.at_once(new.inputs, logits.view(len(new.budget), self.nodes, -1), new.budget)
        if self._tree is not None:
            return self._as_tree(self._tree, new.inputs, logits, onward, new.budget)
        return self._one_by_one(new.inputs, logits, onward, new.budget, steps)

    def _streams(self, inputs: DraftInput, fresh: UnreadRows, count: Tensor, carried: Tensor) -> Tensor:
        """The target's features for every row: from this pass, from the block before it, or those of a mask."""
        mask = None if self._mask is None else self.head.parts.mask_hidden  # type: ignore[attr-defined]
        kind = face(self.device)
        if kind == "triton" or (kind == "numba" and inputs.features[0].dtype == torch.float32):
            if kind == "numba":
                from augury.kernels.streams_numba import gather_streams
            else:
                from augury.kernels.streams_triton import gather_streams
            return gather_streams(
                inputs.features,
                fresh.places,
                inputs.row_begin,
                inputs.start,
                inputs.num_new_tokens,
                inputs.path,
                count,
                carried,
                inputs.slots,
                inputs.block_tables,
                inputs.block_size,
                self._block_ends,
                mask,
            )
        group = fresh.group
        place = fresh.number - carried[group]  # on the track; -1 is the token before this pass
        rows = track_rows(inputs, group, place)
        streams = torch.cat([stream[rows] for stream in inputs.features], dim=1)
        position = inputs.start[group] + place
        block = physical(inputs, fresh.rows.slots, position.clamp(min=0)) // inputs.block_size
        live = fresh.live.bool()
        real = live & (fresh.number < count[group])
        last = real & (place >= 0) & ((position + 1) % inputs.block_size == 0)
        self._block_ends[torch.where(last, block, 0)] = streams  # block 0 is the null block
        streams = torch.where((real & (place < 0))[:, None], self._block_ends[block], streams)
        if mask is None:
            return streams
        unknown = live & (fresh.number >= count[group])
        return torch.where(unknown[:, None], mask, streams)

    def _one_by_one(self, inputs: DraftInput, logits: Tensor, hidden: Tensor, budget: Tensor, steps: int) -> Draft:
        draft = self.chain.begin(inputs, budget)
        for i in range(steps):
            tokens = self.chain.write(draft, inputs, logits, i)
            if i + 1 == steps or not self.chain.goes_on():
                break
            logits, hidden = self.head.forward(step_rows(inputs, tokens, i, budget, SHIFT), hidden, i + 1)
        return self.chain.finish(draft)

    def _as_tree(self, tree: TreeShape, inputs: DraftInput, logits: Tensor, hidden: Tensor, budget: Tensor) -> Draft:
        def run(tokens: Tensor, states: Tensor | None, bits: Tensor, depth: int, number: int) -> tuple[Tensor, Tensor]:
            assert states is not None
            rows = level_rows(inputs, tokens, bits, depth, number, budget, SHIFT)
            scores, onward = self.head.forward(rows, states.flatten(0, 1), depth)
            return scores.view(*tokens.shape, -1), onward.view(*tokens.shape, -1)

        return tree.grow(logits, hidden, run, budget, self.head.targets)

    def admit(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        """After a prefix found in the cache, the first row needs features that this request never computes."""
        self._carried[slot] = int(cached > 0)

    def reset(self, slot: int) -> None:
        """Forget a slot: its request has left."""
        self._carried[slot] = 0
