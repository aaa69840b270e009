"""DFlash2: DFlash's layers with convolutions around their parts, and a selector that ties a block's tokens together.

The block's own scores only nominate the best few tokens of each position. Which of them is chosen depends on the
previous token, by a product of three short vectors: one for each of the two tokens and one of the hidden state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from augury.model.errors import ModelError
from augury.model.heads.dflash import DFlash, DFlashReader
from augury.model.heads.dflash_config import DFLASH2, inner_part, relative
from augury.model.heads.dflash_conv import GroupedConv
from augury.model.heads.files import Weights, read_raw_config
from augury.model.layers import Linear
from augury.model.target import Target

# The defaults of the speculators format; z-lab's files state all of them.
DEFAULTS = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}


class DFlash2Sizes(NamedTuple):
    """The sizes that config.json states in addition to DFlash's."""

    taps: int
    group: int
    rank: int
    top_k: int


class Nominees(NamedTuple):
    """The candidates of every position of some blocks."""

    tokens: Tensor  # int64 [G, depth, k]
    scores: Tensor  # float32 [G, depth, k]: the block's own, best first
    keys: Tensor  # float32 [G, depth, rank]: the position's weights of pairs


@dataclass(slots=True)
class Selector:
    """Scores pairs of neighbouring tokens."""

    before: Tensor  # [V, rank]: of the token before
    after: Tensor  # [V, rank]: of the candidate
    project: Linear  # [rank, H]
    top_k: int

    def pairs(self, found: Nominees, depth: int, previous: Tensor) -> Tensor:
        """Scores [G, W, k] of the candidates at a depth after the tokens `previous` [G, W]."""
        weighed = self.before[previous].float() * found.keys[:, depth, None]
        tied = weighed @ self.after[found.tokens[:, depth]].float().transpose(1, 2)
        return found.scores[:, depth, None] + tied


class DFlash2(DFlash):
    """The block drafter and its selector."""

    selector: Selector

    @torch.no_grad()
    def nominees(self, hidden: Tensor) -> Nominees:
        """The likeliest few tokens of every position, from hidden states [G, depth, H]."""
        flat, shape = hidden.flatten(0, 1), hidden.shape[:2]
        best = self.scores(flat).topk(self.selector.top_k, dim=1)
        keys = self.selector.project(flat).float()
        return Nominees(best.indices.view(*shape, -1), best.values.view(*shape, -1), keys.view(*shape, -1))

    @classmethod
    def load(
        cls, directory: Path, target: Target, dtype: torch.dtype, max_model_len: int, dummy: bool = False
    ) -> DFlash2:
        """Read z-lab's layout or the speculators one."""
        reader = DFlashReader(directory, target, dtype, DFLASH2, dummy)
        config, weights = reader.config, reader.weights
        sizes = read_sizes(directory, config.raw, config.layer.hidden_size, target.vocab_size)
        if config.draft_vocab != target.vocab_size:
            raise ModelError(
                f"{directory}: a DFlash2 drafter guesses among all of the target's {target.vocab_size} tokens, this "
                f"one among {config.draft_vocab} (draft_vocab_size); take one with the whole vocabulary."
            )
        size = config.layer.hidden_size
        convs = [_read_convs(weights, f"layers.{i}", sizes, size) for i in range(config.layer.num_hidden_layers)]
        selector = _read_selector(weights, sizes, target.vocab_size, size)
        parts, layers = reader.finish("DFlash2 drafter", max_model_len)
        for layer, pair in zip(layers, convs, strict=True):
            layer.attention_conv, layer.mlp_conv = pair
        head = cls(target, config, parts, layers)
        head.selector = selector
        return head


def load_dflash(directory: Path, target: Target, dtype: torch.dtype, max_model_len: int, dummy: bool = False) -> DFlash:
    """Load a DFlash or a DFlash2 drafter, whichever a directory holds: both are run by one method."""
    kind = DFlash2 if relative(read_raw_config(directory)) == DFLASH2 else DFlash
    return kind.load(directory, target, dtype, max_model_len, dummy)


def read_sizes(directory: Path, raw: Mapping[str, Any], hidden: int, vocab: int) -> DFlash2Sizes:
    """Read and check the sizes of convolutions and selector in config.json."""
    inner, told = inner_part(raw), dict[str, int]()
    for name, default in DEFAULTS.items():
        unsaid = default if "speculators_model_type" in raw else None
        size = inner.get(name, raw.get(name, unsaid))
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ModelError(f"{directory}: a DFlash2 drafter needs {name}, a whole number above 0; it says {size!r}.")
        told[name] = size
    sizes = DFlash2Sizes(*told.values())
    if hidden % sizes.group:
        raise ModelError(f"{directory}: conv_group_size={sizes.group} does not divide the hidden size of {hidden}.")
    if sizes.top_k > vocab:
        raise ModelError(f"{directory}: selector_top_k={sizes.top_k} is more than the target's {vocab} tokens.")
    return sizes


def _read_convs(weights: Weights, prefix: str, sizes: DFlash2Sizes, hidden: int) -> tuple[GroupedConv, GroupedConv]:
    """The convolutions around a layer's attention and around its MLP."""
    rows = 2 * sizes.taps * (hidden // sizes.group)
    attention, mlp = (
        GroupedConv(
            weights.small(f"{prefix}.{name}.base_kernel", 2, sizes.taps, hidden),
            weights.linear(f"{prefix}.{name}.kernel_projection", rows, hidden, bias=False),
            sizes.group,
        )
        for name in ("attention_conv", "mlp_conv")
    )
    return attention, mlp


def _read_selector(weights: Weights, sizes: DFlash2Sizes, vocab: int, hidden: int) -> Selector:
    at = "candidate_selector"
    return Selector(
        weights.matrix(f"{at}.predecessor_codebook", vocab, sizes.rank),
        weights.matrix(f"{at}.successor_codebook", vocab, sizes.rank),
        weights.linear(f"{at}.hidden_projection", sizes.rank, hidden, bias=False),
        sizes.top_k,
    )
