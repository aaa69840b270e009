"""A gate head for `dflash`: blocks of masks over the target's streams as context, in z-lab's layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from augury.train.export import export
from augury.train.fit import fit
from augury.train.layers import Attention, DecoderLayer, KeysValues, LayerSizes
from augury.train.pairs import Deck, shake
from augury.train.recipe import Recipe
from augury.train.study import Lesson, Study, block_layers
from augury.train.words import Competition, fading

LAYERS = 2
ANCHORS = 24  # blocks of a lesson in a step
THETA = 1e4  # positions matter more than in a target that reads long texts
SHARPNESS = 2.5  # initial weight of the query norms


@dataclass(slots=True)
class Blocks:
    """Some lessons packed: their context, and blocks that begin at some positions of it."""

    streams: Tensor  # [R, n * H]
    positions: Tensor  # int64 [R]
    newest: Tensor  # int64 [B]: the known token that a block begins with
    anchor: Tensor  # int64 [B]: its position
    ahead: Tensor  # int64 [B, depth]: what the masks stand for, -1 past the end of the text
    seen: Tensor  # bool [B, R]: the rows before the block in its own text


def pack(lessons: list[Lesson], layers: tuple[int, ...], depth: int, dice: torch.Generator) -> Blocks:
    """Blocks at random positions of each answer."""
    parts = []
    for number, lesson in enumerate(lessons):
        spots = torch.arange(lesson.start, len(lesson.tokens) - 1)
        at = spots[torch.randperm(len(spots), generator=dice)[:ANCHORS]]
        index = at[:, None] + 1 + torch.arange(depth)
        ahead = lesson.tokens[index.clamp(max=len(lesson.tokens) - 1)]
        rows = len(lesson.tokens) - 1
        parts.append(
            (
                torch.cat([lesson.streams[i] for i in layers], dim=1),
                torch.arange(rows),
                torch.full((rows,), number),
                lesson.tokens[at],
                at,
                torch.where(index < len(lesson.tokens), ahead, -1),
                torch.full_like(at, number),
            )
        )
    streams, positions, home, newest, anchor, ahead, owner = (torch.cat(part) for part in zip(*parts, strict=True))
    seen = (owner[:, None] == home) & (positions < anchor[:, None])
    return Blocks(streams, positions, newest, anchor, ahead, seen)


class DFlash(nn.Module):
    """Layers whose queries are blocks; the context only gives keys and values."""

    def __init__(self, shape: LayerSizes, streams: int, layers: int = LAYERS) -> None:
        super().__init__()
        self.fc = nn.Linear(streams * shape.hidden, shape.hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.stack = [self.made_layer(shape) for _ in range(layers)]
        self.layers = nn.ModuleList(self.stack)
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)

    def made_layer(self, shape: LayerSizes) -> DecoderLayer:
        """A fresh layer, of the kind that the network consists of."""
        return DecoderLayer(shape, normed=True)

    def begin(self) -> None:
        """Initialise what a subclass adds, after all matrices were set to small random numbers."""

    def forward(self, study: Study, blocks: Blocks, mask: int, anchored: bool = False) -> Tensor:
        """The states [B, depth, H] to guess from: at the masks; if `anchored`, at the known token and fewer masks."""
        count, depth = blocks.ahead.shape
        size = depth + 1 - int(anchored)
        context = self.hidden_norm(self.fc(blocks.streams))
        tokens = torch.cat([blocks.newest[:, None], torch.full_like(blocks.ahead, mask)], dim=1)[:, :size].flatten()
        positions = (blocks.anchor[:, None] + torch.arange(size)).flatten()
        seen = blocks.seen.repeat_interleave(size, dim=0)
        x = study.embed(tokens)
        for layer in self.stack:
            attention = layer.self_attn
            shared = attention.keys_values(context, blocks.positions)

            def attend(read: Tensor, attention: Attention = attention, shared: KeysValues = shared) -> Tensor:
                keys, values = attention.keys_values(read, positions)
                # Every row of a block sees all rows of it: row i of each block, once for every row that attends.
                own = [(row(keys, i, size), row(values, i, size)) for i in range(size)]
                attended: Tensor = attention(read, positions, shared, seen, own)
                return attended

            x = self.through(layer, x, attend, size)
        final: Tensor = self.norm(x).view(count, size, -1)[:, 1 - int(anchored) :]
        return final

    def through(self, layer: DecoderLayer, x: Tensor, attend: Callable[[Tensor], Tensor], size: int) -> Tensor:
        """Run a layer on the rows of blocks of `size`, [B * size, H]."""
        return layer.after(attend(layer.input_layernorm(x)), x)


def row(x: Tensor, i: int, size: int) -> Tensor:
    """Row i of every block of `size` rows, [B * size, ...], repeated for all rows of the block."""
    return x[i::size].repeat_interleave(size, 0)


def begin(module: DFlash, shape: LayerSizes) -> None:
    """Small random matrices, but the context starts as the target's last stream, and attention starts sharp."""
    shake(module)
    with torch.no_grad():
        module.fc.weight[:, -shape.hidden :] += torch.eye(shape.hidden)
        for layer in module.stack:
            layer.self_attn.q_norm.weight.fill_(SHARPNESS)
        module.begin()


Made = TypeVar("Made", bound=DFlash)
Judge = Callable[[Made, Competition, Blocks, Tensor], Tensor]
"""(module, competition, blocks, their states [B, depth, H]) -> the loss of a step."""


def learn_blocks(
    study: Study, recipe: Recipe, made: Callable[[LayerSizes, int], Made], judge: Judge[Made], anchored: bool = False
) -> tuple[Made, LayerSizes, float]:
    """Train a network on blocks of `depth` guesses of the answers; returns it, its sizes and its last loss."""
    shape = replace(LayerSizes.like(study.config), theta=THETA)
    layers = block_layers(study.config.num_hidden_layers)
    module = made(shape, len(layers))
    begin(module, shape)
    deck, dice = Deck(study.lessons, recipe.lessons), torch.Generator().manual_seed(0)
    competition = Competition(study.head, study.words)

    def loss() -> Tensor:
        competition.draw()
        blocks = pack(deck.deal(), layers, recipe.depth, dice)
        return judge(module, competition, blocks, module(study, blocks, mask_of(study.config), anchored))

    return module, shape, fit(module, loss, recipe.steps, recipe.rate, recipe.tick)


def mask_of(target: Any) -> int:
    """The mask token: the last of the vocabulary, whose embedding is assumed to be unused."""
    return int(target.vocab_size) - 1


def block_loss(module: DFlash, competition: Competition, blocks: Blocks, read: Tensor) -> Tensor:
    """The cross entropy of the tokens ahead, later ones weighing less."""
    return fading([competition.loss(read[:, i], blocks.ahead[:, i]) for i in range(read.shape[1])])


def train_dflash(study: Study, directory: Path, recipe: Recipe) -> float:
    """Train it to fill blocks of `depth` masks; returns the last loss."""
    module, shape, last = learn_blocks(study, recipe, DFlash, block_loss)
    export(module, dflash_config(study.config, shape, LAYERS, recipe.depth, mask_of(study.config)), directory)
    return last


def dflash_config(target: Any, shape: LayerSizes, layers: int, depth: int, mask: int) -> dict[str, Any]:
    """The content of config.json."""
    return shape.config(target.vocab_size, target.max_position_embeddings, layers) | {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "block_size": depth + 1,
        "num_target_layers": target.num_hidden_layers,
        # z-lab's ids name the layer whose output is read.
        "dflash_config": {
            "mask_token_id": mask,
            "target_layer_ids": [i - 1 for i in block_layers(target.num_hidden_layers)],
        },
    }
