"""DFlash: one pass fills a block of masked positions; a chain of their likeliest tokens, or a tree over them.

The streams of every token the target has agreed to become the drafter's context, in the cache rows of those tokens, so
that a block found again in the prefix cache brings its context along. The block itself, the newest token and the masks
behind it, lies in the rows after them and is written over by the next step's context.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from augury.config.errors import ConfigError
from augury.config.speculative import SpeculativeConfig
from augury.config.tree_literal import read_tree
from augury.methods.spec import MAX_NODES
from augury.model.heads.dflash import DFlash
from augury.model.heads.probe import settle_dflash
from augury.model.load import choose_head_dtype
from augury.model.store import resolve
from augury.model.target import KVCache, Rows, bytes_per_token
from augury.propose.base import Needs, Setting, Turn
from augury.propose.chain import ChainWriter
from augury.propose.features import track_lengths, track_rows
from augury.propose.medusa import LiteralTree, MarginalTree
from augury.propose.rows import fresh_rows, most_steps, physical
from augury.verify.sampling import Outcome
from augury.verify.tree import Draft


class DFlashDrafter:
    """Reads the streams of what was accepted, then fills the block behind it."""

    name = "dflash"
    on_host = False

    def __init__(self, config: SpeculativeConfig, setting: Setting) -> None:
        """Load the drafter next to its target."""
        assert config.model is not None
        target = setting.target
        dtype = choose_head_dtype(setting.dtype, target)
        self.head = DFlash.load(resolve(config.model), target, dtype, setting.max_model_len)
        self.device, self.vocab = target.device, target.vocab_size
        self.branching = config.drafts_trees
        self.nodes = config.max_nodes
        paths = read_tree(config.speculative_token_tree) if config.speculative_token_tree else None
        self.depth = len(paths[-1]) if paths else config.num_speculative_tokens
        self.longest = min(config.max_model_len or self.head.max_position, self.head.max_position)
        check_depth(self.depth)
        settle_dflash(self.head, setting.directory, setting.max_model_len, self.depth)
        self.needs = Needs(self.head.features)
        self._tree: LiteralTree | MarginalTree | None = None
        if paths:
            self._tree = LiteralTree(paths, target.vocab_size, self.device)
        elif config.tree:
            self._tree = MarginalTree(self.nodes, min(config.tree.top_k, self.vocab), self.depth, self.device)
        self._writer = ChainWriter(config, self.vocab, self.device)

    @property
    def bytes_per_token(self) -> int:
        """Cache bytes a token takes beside the target's."""
        return bytes_per_token(self.head.layer_shapes, self.head.cache_dtype)

    def allocate(self, rows: int, block_size: int) -> None:
        """Make the cache, as many rows as the target has."""
        self.head.cache = KVCache.allocate(self.head.layer_shapes, rows, self.head.cache_dtype, self.device)

    def propose(self, turn: Turn) -> Draft:
        """Read the new context of every group, fill a block for those that may draft."""
        self._read(turn)
        budget = torch.minimum(turn.budget, self.longest - turn.lengths).clamp(min=0, max=self.nodes)
        masks = budget.clamp(max=self.depth)
        steps = most_steps(masks, self.depth)
        if steps == 0:
            return Draft.empty(len(budget), self.nodes, self.device)
        logits = self.head.fill(*block_rows(turn, masks, steps, self.head.mask_token or 0))
        lines = logits.view(len(budget), steps, self.vocab)
        return self._chain(turn, lines, budget) if self._tree is None else self._grown(lines, masks, budget)

    def _read(self, turn: Turn) -> None:
        fresh = fresh_rows(turn, turn.start, track_lengths(turn))
        rows = track_rows(turn, fresh.group, torch.where(fresh.live, fresh.number, -1))
        self.head.read(torch.cat([stream[rows] for stream in turn.features], dim=1), fresh.rows)

    def _chain(self, turn: Turn, lines: Tensor, budget: Tensor) -> Draft:
        draft = self._writer.blank(len(budget))
        for i in range(lines.shape[1]):
            self._writer.write(draft, turn, lines[:, i].contiguous(), i)
        draft.count = budget
        return draft

    def _grown(self, lines: Tensor, masks: Tensor, budget: Tensor) -> Draft:
        assert self._tree is not None
        # A depth without a mask has no law: an even one comes last wherever something better is left.
        lines = pad(lines, (0, 0, 0, self.depth - lines.shape[1]))
        depths = torch.arange(self.depth, device=self.device)
        lines = torch.where((depths < masks[:, None])[:, :, None], lines, 0.0)
        tokens, parents = self._tree.grow(list(lines.unbind(1)))
        spare = (0, self.nodes - tokens.shape[1])
        return Draft(pad(tokens, spare), pad(parents, spare, value=-1), budget.clamp(max=tokens.shape[1]))

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""

    def admit(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        """Nothing to do: the context of a prefix found again lies in its rows."""

    def reset(self, slot: int) -> None:
        """Nothing to forget: rows are written before they are read."""


def check_depth(depth: int) -> None:
    """A block's rows are the bits of one integer."""
    if depth >= MAX_NODES:
        raise ConfigError(
            f"speculative_config.num_speculative_tokens={depth}: a DFlash block holds the known token too; "
            f"write {MAX_NODES - 1} or less."
        )


def block_rows(turn: Turn, masks: Tensor, steps: int, mask_token: int) -> tuple[Rows, Tensor]:
    """The newest token of each group and `masks` masks behind it, as rows, [G * (1 + steps)]; and which are masks.

    The newest token lies at its own position, the last known one: the mask i places on stands for the token there.
    Every row sees the context before the block, and by its bits all of the block. Wanted are the masks.
    """
    place = torch.arange(1 + steps, device=masks.device)
    live = (place <= masks[:, None]) & (masks > 0)[:, None]
    newest = (turn.lengths - 1).clamp(min=0)
    logical = torch.where(live, newest[:, None] + place, 0)
    slots = torch.where(live, turn.slots[:, None], 0)
    masked = live & (place > 0)
    tokens = torch.where(masked, mask_token, turn.history[turn.slots, newest][:, None])
    base = torch.where(live, newest[:, None], 0)
    bits = torch.where(live, ((2 << masks) - 1)[:, None], 0)
    numbers = torch.arange(live.numel(), device=masks.device).view_as(live)
    rows = Rows(
        tokens=torch.where(live, tokens, 0).flatten(), positions=logical.flatten(), slots=slots.flatten(),
        context=base.flatten(), base=base.flatten(), ancestors=bits.flatten(),
        write=torch.where(live, physical(turn, slots, logical), 0).flatten(), wanted=numbers[:, 1:].flatten(),
        block_tables=turn.block_tables, block_size=turn.block_size, span=turn.span,
    )  # fmt: skip
    return rows, masked.flatten()
