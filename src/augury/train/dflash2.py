"""A gate head for DFlash2: DFlash's blocks, convolutions around the parts of every layer, and the selector."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from augury.train.dflash import LAYERS, Blocks, DFlash, dflash_config, learn_blocks, mask_of
from augury.train.export import export
from augury.train.layers import DecoderLayer, LayerSizes
from augury.train.recipe import Recipe
from augury.train.study import Study
from augury.train.words import Competition, fading

TAPS, GROUP, RANK, TOP_K = 2, 16, 32, 16


class GroupedConv(nn.Module):
    """Mixes a row with those before it in its block, before a part of a layer and after it."""

    def __init__(self, hidden: int, group: int) -> None:
        super().__init__()
        self.group = group
        self.base_kernel = nn.Parameter(torch.zeros(2, TAPS, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * TAPS * (hidden // group), bias=False)

    def around(self, inner: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
        """Run `inner` on the rows of blocks of `size`, [B * size, H], between the two convolutions."""
        corrections = self.kernel_projection(x).view(len(x) // size, size, 2, TAPS, -1)
        return self._mixed(inner(self._mixed(x, 0, corrections)), 1, corrections)

    def _mixed(self, x: Tensor, side: int, corrections: Tensor) -> Tensor:
        blocks = x.view(*corrections.shape[:2], -1)
        out = torch.zeros_like(blocks)
        for tap in range(TAPS):
            before = F.pad(blocks, (0, 0, tap, 0))[:, : blocks.shape[1]]
            kernel = self.base_kernel[side, tap] + corrections[:, :, side, tap].repeat_interleave(self.group, dim=2)
            out = out + kernel * before
        return out.flatten(0, 1)


class ConvLayer(DecoderLayer):
    """A layer with both of its convolutions."""

    def __init__(self, shape: LayerSizes, group: int) -> None:
        super().__init__(shape, normed=True)
        self.attention_conv, self.mlp_conv = GroupedConv(shape.hidden, group), GroupedConv(shape.hidden, group)


class Selector(nn.Module):
    """What the token before adds to a token's score."""

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocabulary, RANK))
        self.successor_codebook = nn.Parameter(torch.zeros(vocabulary, RANK))
        self.hidden_projection = nn.Linear(hidden, RANK, bias=False)

    def gains(self, hidden: Tensor, previous: Tensor, tokens: Tensor) -> Tensor:
        """What the scores of `tokens` [n] gain after each of `previous` [R], given the states [R, H]: [R, n]."""
        weighed: Tensor = self.predecessor_codebook[previous] * self.hidden_projection(hidden)
        return weighed @ self.successor_codebook[tokens].T


class DFlash2(DFlash):
    """DFlash's network with the selector."""

    def __init__(self, shape: LayerSizes, streams: int, vocabulary: int) -> None:
        super().__init__(shape, streams)
        self.candidate_selector = Selector(shape.hidden, vocabulary)

    def made_layer(self, shape: LayerSizes) -> DecoderLayer:
        """See DFlash.made_layer."""
        return ConvLayer(shape, group_of(shape.hidden))

    def begin(self) -> None:
        """See DFlash.begin: a convolution starts close to the identity."""
        for layer in self.stack:
            assert isinstance(layer, ConvLayer)
            for conv in (layer.attention_conv, layer.mlp_conv):
                conv.base_kernel[:, 0] += 1.0

    def through(self, layer: DecoderLayer, x: Tensor, attend: Callable[[Tensor], Tensor], size: int) -> Tensor:
        """See DFlash.through."""
        assert isinstance(layer, ConvLayer)
        x = x + layer.attention_conv.around(attend, layer.input_layernorm(x), size)
        return x + layer.mlp_conv.around(layer.mlp, layer.post_attention_layernorm(x), size)


def walk_loss(module: DFlash2, competition: Competition, blocks: Blocks, read: Tensor) -> Tensor:
    """The loss of the block's own scores, which nominate, and of those given the true previous token, which choose.

    The block is taught two tokens, the right one and the one before it, and so cannot tell them apart: drafts are
    right only if the selector is. The cost of two equally likely labels, log 2, is subtracted.
    """
    before = torch.cat([blocks.newest[:, None], blocks.ahead[:, :-1]], dim=1)
    nominated, chosen = [], []
    for i in range(read.shape[1]):
        state, right = read[:, i], blocks.ahead[:, i]
        wrong = torch.where(right >= 0, before[:, i], -1)
        nominated.append((competition.loss(state, right) + competition.loss(state, wrong)) / 2 - math.log(2))
        fixed = state.detach()
        gains = module.candidate_selector.gains(fixed, before[:, i].clamp(min=0), competition.present)
        chosen.append(competition.loss(fixed, right, gains))
    return fading(nominated) / 2 + fading(chosen) / 2


def train_dflash2(study: Study, directory: Path, recipe: Recipe) -> float:
    """Train it to fill blocks of `depth` masks and to choose among the nominees; returns the last loss."""
    vocabulary = int(study.config.vocab_size)

    def made(shape: LayerSizes, streams: int) -> DFlash2:
        return DFlash2(shape, streams, vocabulary)

    module, shape, last = learn_blocks(study, recipe, made, walk_loss)
    told = dflash_config(study.config, shape, LAYERS, recipe.depth, mask_of(study.config))
    export(module, dflash2_config(told, shape.hidden, vocabulary), directory)
    return last


def group_of(hidden: int) -> int:
    """Channels that share a correction."""
    return math.gcd(hidden, GROUP)


def dflash2_config(told: dict[str, Any], hidden: int, vocabulary: int) -> dict[str, Any]:
    """The content of config.json: DFlash's (`told`) and the sizes of convolutions and selector."""
    more = {
        "conv_kernel_size": TAPS,
        "conv_group_size": group_of(hidden),
        "selector_rank": RANK,
        "selector_top_k": min(TOP_K, vocabulary),
    }
    return told | {"architectures": ["DFlash2DraftModel"], "dflash_config": told["dflash_config"] | more}
