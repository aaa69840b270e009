"""Heads that read pairs, unrolled over whole batches: from every position of every text at once.

The same unrolling as in pairs.py (EAGLE-3's training-time test), for texts by the thousand: a row attends to the true
pairs up to itself and to the drafted ones of its own draft. Row r of a text is the pair (token r + 1, features of token
r); its guess i is token r + 2 + i.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from augury.train.batches import Batch
from augury.train.layers import Attention, KeysValues
from augury.train.pairs import PairHead
from augury.train.reach import Reach

Choose = Callable[[int, Tensor], Tensor]  # guess i, what the output matrix reads [B * R, H] -> tokens fed on [B * R]


def unroll(
    head: PairHead, embedding: Tensor, batch: Batch, reached: Reach, choose: Choose | None = None
) -> list[Tensor]:
    """The states that the output matrix reads, for each guess those of the rows that reach it, [B, n, H]; fed with the
    text itself, or with the tokens that `choose` returns."""
    count, length = batch.tokens.shape[0], batch.tokens.shape[1] - 1
    attention, dtype = head.layer.self_attn, head.layer.mlp.up_proj.weight.dtype
    embedded = F.embedding(batch.tokens[:, 1:].flatten(), embedding).to(dtype)
    x, residual = head.enter(embedded, head.combine(batch.streams[:, :-1].flatten(0, 1).to(dtype)))
    shared = attention.keys_values(x, torch.arange(length, device=x.device).repeat(count))
    x, residual = _only(x, reached[0], count), _only(residual, reached[0], count)
    onward, own, found = residual, list[KeysValues](), list[Tensor]()
    for i, rows in enumerate(reached):
        positions = (rows + i).repeat(count)
        if i:
            fed = batch.tokens[:, 1:].roll(-i, 1)[:, rows].flatten() if choose is None else choose(i - 1, found[-1])
            onward, own = _first(onward, len(rows), count), [_firsts(pair, len(rows), count) for pair in own]
            x, residual = head.enter(*head.later(embedding, fed, onward))
            own.append(attention.keys_values(x, positions))
        attended = attend(attention, x, positions, shared, own, rows)
        read, onward = head.leave(head.layer.after(attended, residual))
        found.append(read)
    return [read.view(count, len(rows), -1) for read, rows in zip(found, reached, strict=True)]


def _only(x: Tensor, rows: Tensor, count: int) -> Tensor:
    """Select `rows` of every text in x [B * R, ...]."""
    return x.view(count, -1, *x.shape[1:])[:, rows].flatten(0, 1)


def _first(x: Tensor, kept: int, count: int) -> Tensor:
    """Select the first `kept` rows of every text in x [B * R, ...]."""
    return x.view(count, -1, *x.shape[1:])[:, :kept].flatten(0, 1)


def _firsts(pair: KeysValues, kept: int, count: int) -> KeysValues:
    return _first(pair[0], kept, count), _first(pair[1], kept, count)


def attend(
    attention: Attention, x: Tensor, positions: Tensor, shared: KeysValues, own: list[KeysValues], rows: Tensor
) -> Tensor:
    """[B * n, H]: row r of a text sees its shared rows 0 .. r, and row r of every `own`."""
    heads, groups = attention.shape.heads, attention.shape.heads // attention.shape.kv_heads
    count = len(x) // len(rows)

    def by_head(rows: Tensor, times: int = groups) -> Tensor:
        return rows.view(count, -1, *rows.shape[1:]).transpose(1, 2).repeat_interleave(times, dim=1)

    q = by_head(attention.queries(x, positions), 1)
    keys, values = by_head(shared[0]), by_head(shared[1])
    scores = q @ keys.transpose(2, 3)
    length = scores.shape[-1]
    future = torch.arange(length, device=x.device) > rows[:, None]
    scores = scores.masked_fill(future, float("-inf"))
    mine = [(by_head(k), by_head(v)) for k, v in own]
    extra = [(q * k).sum(-1, keepdim=True) for k, _ in mine]
    weights = torch.cat([scores, *extra], dim=-1).float().softmax(-1).to(values.dtype)
    out = weights[..., :length] @ values
    for i, (_, v) in enumerate(mine):
        out = out + weights[..., length + i, None] * v
    projected: Tensor = attention.o_proj(out.transpose(1, 2).reshape(len(x), heads * attention.shape.dim))
    return projected
