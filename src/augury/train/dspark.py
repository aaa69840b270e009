"""A gate head for `dspark`: blocks whose every row guesses the token after it, and the correction by that row's own
token; in the dense layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from augury.train.dflash import LAYERS, Blocks, DFlash, dflash_config, learn_blocks, mask_of
from augury.train.export import export
from augury.train.layers import LayerSizes
from augury.train.recipe import Recipe
from augury.train.study import Study
from augury.train.words import Competition, fading

RANK = 32


class Markov(nn.Module):
    """W2 W1[token before]."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocabulary, RANK)
        self.markov_w2 = nn.Linear(RANK, vocabulary, bias=False)

    def changes(self, previous: Tensor, tokens: Tensor) -> Tensor:
        """Changes to the scores of `tokens` [n] after each of `previous` [R]: [R, n]."""
        read: Tensor = self.markov_w1(previous)
        return read @ self.markov_w2.weight[tokens].T


class DSpark(DFlash):
    """DFlash's network with the correction."""

    def __init__(self, shape: LayerSizes, streams: int, vocabulary: int) -> None:
        super().__init__(shape, streams)
        self.markov_head = Markov(vocabulary)


def corrected_loss(module: DSpark, competition: Competition, blocks: Blocks, read: Tensor) -> Tensor:
    """The loss of each token, corrected by the true token before it."""
    before = torch.cat([blocks.newest[:, None], blocks.ahead[:, :-1].clamp(min=0)], dim=1)
    losses = []
    for i in range(read.shape[1]):
        changes = module.markov_head.changes(before[:, i], competition.present)
        losses.append(competition.loss(read[:, i], blocks.ahead[:, i], changes))
    return fading(losses)


def train_dspark(study: Study, directory: Path, recipe: Recipe) -> float:
    """Train it to guess `depth` tokens from as many rows; returns the last loss."""
    vocabulary = int(study.config.vocab_size)

    def made(shape: LayerSizes, streams: int) -> DSpark:
        return DSpark(shape, streams, vocabulary)

    module, shape, last = learn_blocks(study, recipe, made, corrected_loss, anchored=True)
    told = dflash_config(study.config, shape, LAYERS, recipe.depth, mask_of(study.config))
    export(module, dspark_config(told, recipe.depth), directory)
    return last


def dspark_config(told: dict[str, Any], depth: int) -> dict[str, Any]:
    """The content of config.json in place of DFlash's (`told`): the dense layout has no separate part for drafting."""
    inner = told["dflash_config"]
    return {name: value for name, value in told.items() if name != "dflash_config"} | {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": depth,
        "mask_token_id": inner["mask_token_id"],
        "target_layer_ids": inner["target_layer_ids"],
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "sample_from_anchor": True,
        "enable_confidence_head": False,
    }
