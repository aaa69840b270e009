"""DFlash in training: blocks of masks after random positions of the answers, over the target's streams as context."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from augury.train.batches import Batch, Teacher
from augury.train.dflash import THETA, DFlash, begin, dflash_config
from augury.train.export import halved, write_checkpoint
from augury.train.layers import Attention, KeysValues, LayerSizes
from augury.train.losses import Loss
from augury.train.reach import places
from augury.train.study import block_layers
from augury.train.trainee import Goal, Guess, Trainee

ANCHORS = 48  # blocks of a text in a step: further steps teach more than further blocks of the same texts


class DFlashTrainee(Trainee):
    """Row r's block begins with token r + 1; its masks stand for the tokens after it."""

    module: DFlash
    own_words = False
    bounded = True

    def __init__(self, goal: Goal, config: Any, teacher: Teacher, words: Tensor) -> None:
        self._shape = replace(LayerSizes.like(config), theta=THETA)
        self._mask = int(config.vocab_size) - 1  # whose embedding is assumed to be unused
        super().__init__(goal, config, teacher, words)

    @classmethod
    def streams_of(cls, kind: str, config: Any) -> tuple[int, ...]:
        """See Trainee.streams_of."""
        return block_layers(config.num_hidden_layers)

    def made(self, teacher: Teacher) -> nn.Module:
        """See Trainee.made."""
        module = DFlash(self._shape, len(self.layers), self.goal.layers)
        begin(module, self._shape)
        return module

    def loss(self, batch: Batch, measure: Loss) -> Tensor:
        """The loss over blocks at random rows of every answer; weights fall to 1 / e by the middle of a block."""
        depth, first, guesses = self.goal.depth, places(batch, 0), list[Guess]()
        drawn = batch.noise[:, :-1].masked_fill(~first, -1)
        anchors = drawn.topk(min(ANCHORS, drawn.shape[1]), dim=1).indices
        found = self.fill(batch, anchors, depth)
        for i in range(depth):
            at = (anchors + 1 + i).clamp(max=batch.tokens.shape[1] - 1)[..., None].expand(-1, -1, batch.normed.shape[2])
            counted = places(batch, i).gather(1, anchors)
            guesses.append(Guess(found[:, :, i], batch.normed.gather(1, at), counted))
        return self._over(guesses, [math.exp(-2 * i / depth) for i in range(depth)], measure)

    def fill(self, batch: Batch, anchors: Tensor, depth: int) -> Tensor:
        """The states at `depth` masks after the rows `anchors` [B or 1, A], for the output matrix: [B, A, depth, H]."""
        count, module = len(batch.tokens), self.module
        first = (anchors[..., None] + 1).expand(count, -1, 1)
        positions = (first + torch.arange(depth + 1, device=first.device)).flatten(1)  # [B, A * S]
        newest = batch.tokens.gather(1, first[..., 0])[..., None]
        tokens = torch.cat([newest, newest.new_full((*newest.shape[:2], depth), self._mask)], dim=2).flatten()
        dtype = module.fc.weight.dtype
        context = module.hidden_norm(module.fc(batch.streams.to(dtype))).flatten(0, 1)
        past = torch.arange(batch.tokens.shape[1], device=first.device)
        seen = sight(anchors, len(past), depth + 1)
        x = F.embedding(tokens, self.embedding).to(dtype)
        for layer in module.stack:
            attention, read = layer.self_attn, layer.input_layernorm(x)
            mine = attention.keys_values(read, positions.flatten())
            shared = attention.keys_values(context, past.repeat(count))
            x = layer.after(attend(attention, read, positions, shared, mine, seen), x)
        final: Tensor = module.norm(x).view(count, anchors.shape[1], depth + 1, -1)[:, :, 1:]
        return final

    def behind_text(self, batch: Batch, tokens: int) -> list[Tensor]:
        """See Trainee.behind_text; its guesses do not depend on each other."""
        rows = torch.arange(batch.tokens.shape[1] - 1, device=batch.tokens.device)
        return list(self.fill(batch, rows[None], tokens).unbind(2))

    @torch.no_grad()
    def drafts(self, batch: Batch, tokens: int) -> Tensor:
        """See Trainee.drafts."""
        return torch.stack([self.choose(states) for states in self.behind_text(batch, tokens)], dim=2)

    def export(self, target: Path, directory: Path) -> None:
        """Write a checkpoint in z-lab's layout."""
        told = dflash_config(self.config, self._shape, self.goal.layers, self.goal.depth, self._mask)
        write_checkpoint(directory, halved(self.module.state_dict()), told)


def sight(anchors: Tensor, length: int, size: int) -> Tensor:
    """Which keys the rows of all blocks see, bool [B or 1, A * size, length + A * size]: the text before their block,
    and the whole block."""
    rows = anchors.repeat_interleave(size, dim=1)
    before = torch.arange(length, device=anchors.device) <= rows[..., None]
    block = torch.arange(anchors.shape[1], device=anchors.device).repeat_interleave(size)
    mine = (block == block[:, None]).expand(len(anchors), -1, -1)
    return torch.cat([before, mine], dim=2)


def attend(
    attention: Attention, x: Tensor, positions: Tensor, shared: KeysValues, mine: KeysValues, seen: Tensor
) -> Tensor:
    """[B * Q, H]: rows x [B * Q, H] at positions [B, Q] over the text's keys and their own."""
    count, shape = len(positions), attention.shape

    def by_head(rows: Tensor, times: int = 1) -> Tensor:
        return rows.view(count, -1, *rows.shape[1:]).transpose(1, 2).repeat_interleave(times, dim=1)

    groups = shape.heads // shape.kv_heads
    q = by_head(attention.queries(x, positions.flatten()))
    keys, values = (
        torch.cat([by_head(a, groups), by_head(b, groups)], dim=2) for a, b in zip(shared, mine, strict=True)
    )
    out = F.scaled_dot_product_attention(q, keys, values, seen[:, None], scale=1.0)  # queries come scaled
    projected: Tensor = attention.o_proj(out.transpose(1, 2).reshape(len(x), shape.heads * shape.dim))
    return projected
