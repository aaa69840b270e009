"""Drafters that fill a block of masked positions in one pass: what DFlash and DSpark share.

The target's streams of every accepted token become the drafter's context, in the cache rows of those tokens, so that a
block found again in the prefix cache brings its context along. The drafted block, the newest token and the masks after
it, lies in the rows after them and is overwritten by the next step's context.
"""

from __future__ import annotations

import torch
from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.speculative import SpeculativeConfig
from augury.config.tree_literal import read_tree
from augury.drafters.base import Drafter, DrafterSetup, DraftInput, Needs
from augury.drafters.chain import ChainWriter
from augury.drafters.features import track_lengths, track_rows
from augury.drafters.rows import fresh_rows, most_steps, physical
from augury.kernels.rows import Rows
from augury.methods.spec import MAX_NODES
from augury.model.heads.dflash import DFlash
from augury.model.heads.probe import settle_dflash
from augury.model.target import KVCache, bytes_per_token


class BlockDrafter(Drafter):
    """A drafter with a block network: its context, its cache, its limits."""

    on_host = False
    chain: ChainWriter

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup, head: DFlash) -> None:
        """Take a loaded network."""
        self.head, target = head, setup.target
        self.device, self.vocab = target.device, target.vocab_size
        self.branching = config.drafts_trees
        self.nodes = config.max_nodes
        self.paths = read_tree(config.speculative_token_tree) if config.speculative_token_tree else None
        self.depth = len(self.paths[-1]) if self.paths else config.num_speculative_tokens
        self.longest = min(config.max_model_len or head.max_position, head.max_position)
        check_depth(self.depth)
        if not setup.dummy:  # random weights guess nothing under any reading
            settle_dflash(head, setup.directory, setup.max_model_len, self.depth)
        self.needs = Needs(head.features)
        self.chain = ChainWriter(config, self.vocab, self.device)

    @property
    def network(self) -> object | None:
        """See Drafter.network."""
        return self.head

    @property
    def bytes_per_token(self) -> int:
        """Cache bytes per token, besides the target's."""
        return bytes_per_token(self.head.layer_shapes, self.head.cache_dtype)

    def allocate(self, rows: int, block_size: int) -> None:
        """Allocate the cache, with as many rows as the target has."""
        self.head.cache = KVCache.allocate(self.head.layer_shapes, rows, self.head.cache_dtype, self.device)

    @property
    def stores(self) -> list[Tensor]:
        """See Drafter.stores."""
        return self.head.cache.stores

    def read(self, inputs: DraftInput) -> None:
        """Add the target's streams of accepted tokens to the context."""
        fresh = fresh_rows(inputs, inputs.start, track_lengths(inputs))
        rows = track_rows(inputs, fresh.group, torch.where(fresh.live > 0, fresh.number, -1))
        self.head.read(torch.cat([stream[rows] for stream in inputs.features], dim=1), fresh.rows)

    def begin(self, inputs: DraftInput) -> tuple[Tensor, Tensor, int]:
        """Read what is new; returns the nodes a group may draft, the tokens of its block, both [G], and their most."""
        self.read(inputs)
        budget = torch.minimum(inputs.budget, self.longest - inputs.lengths).clamp(min=0, max=self.nodes)
        guesses = budget.clamp(max=self.depth)
        return budget, guesses, most_steps(inputs, guesses, self.depth)


def newest_tokens(inputs: DraftInput) -> Tensor:
    """The last known token of every group, int64 [G]."""
    return inputs.history[inputs.slots, (inputs.lengths - 1).clamp(min=0)]


def check_depth(depth: int) -> None:
    """Refuse a depth whose rows, the known token's included, are more than one integer has bits."""
    if depth >= MAX_NODES:
        raise ConfigError(
            f"speculative_config.num_speculative_tokens={depth}: a block holds the known token too; "
            f"write {MAX_NODES - 1} or less."
        )


def block_rows(
    inputs: DraftInput, masks: Tensor, steps: int, mask_token: int, anchored: bool = False
) -> tuple[Rows, Tensor]:
    """Rows [G * width] with the newest token of each group and masks after it; and which of them are masks.

    The newest token has its own position, the last known one. A mask i positions later predicts the token there, and
    `masks` of them predict as many; if `anchored`, every row predicts the token after it, and one mask fewer suffices.
    Every row attends to the context before the block and, by its bits, to all of the block. Logits are wanted for the
    rows that predict.
    """
    noise = masks - int(anchored)
    place = torch.arange(steps + 1 - int(anchored), device=masks.device)
    live = (place <= noise[:, None]) & (masks > 0)[:, None]
    newest = (inputs.lengths - 1).clamp(min=0)
    logical = torch.where(live, newest[:, None] + place, 0)
    slots = torch.where(live, inputs.slots[:, None], len(inputs.block_tables) - 1)
    masked = live & (place > 0)
    tokens = torch.where(masked, mask_token, inputs.history[inputs.slots, newest][:, None])
    base = torch.where(live, newest[:, None], 0)
    bits = torch.where(live, ((2 << noise.clamp(min=0)) - 1)[:, None], 0)
    numbers = torch.arange(live.numel(), device=masks.device).view_as(live)
    rows = Rows(
        tokens=torch.where(live, tokens, 0).flatten(),
        positions=logical.flatten(),
        slots=slots.flatten(),
        context=base.flatten(),
        base=base.flatten(),
        ancestors=bits.flatten(),
        write=torch.where(live, physical(inputs, slots, logical), 0).flatten(),
        wanted=numbers[:, 1 - int(anchored) :].flatten(),
        block_tables=inputs.block_tables,
        block_size=inputs.block_size,
        span=inputs.span,
    )
    return rows, masked.flatten()
