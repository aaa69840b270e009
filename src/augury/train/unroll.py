"""Heads that read pairs, unrolled over whole batches: from every place of every text at once.

The same unrolling as in pairs.py (EAGLE-3's training-time test), for texts by the thousand: a place sees the true pairs
up to itself and the drafted ones of its own draft. Row r of a text is the pair (token r + 1, features of token r); its
guess i is token r + 2 + i.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from augury.train.batches import Batch
from augury.train.layers import Attention, KeysValues
from augury.train.pairs import PairHead

Choose = Callable[[int, Tensor], Tensor]  # guess i, what the output matrix reads [B * R, H] -> tokens fed on [B * R]


def unroll(head: PairHead, embedding: Tensor, batch: Batch, depth: int, choose: Choose | None = None) -> list[Tensor]:
    """What the output matrix reads for each guess, [B, R, H]; fed with the text itself, or with what `choose` says."""
    count, rows = batch.tokens.shape[0], batch.tokens.shape[1] - 1
    attention = head.layer.self_attn
    positions = torch.arange(rows, device=batch.tokens.device).repeat(count)
    dtype = head.layer.mlp.up_proj.weight.dtype
    embedded = torch.nn.functional.embedding(batch.tokens[:, 1:].flatten(), embedding).to(dtype)
    x, residual = head.enter(embedded, head.combine(batch.streams[:, :-1].flatten(0, 1).to(dtype)))
    shared, own = attention.keys_values(x, positions), list[KeysValues]()
    onward, found = residual, list[Tensor]()
    for i in range(depth):
        if i:
            fed = batch.tokens.roll(-1 - i, 1)[:, :rows].flatten() if choose is None else choose(i - 1, found[-1])
            x, residual = head.enter(*head.later(embedding, fed, onward))
            own.append(attention.keys_values(x, positions + i))
        attended = attend(attention, x, positions + i, shared, own, count)
        read, onward = head.leave(head.layer.after(attended, residual))
        found.append(read)
    return [read.view(count, rows, -1) for read in found]


def attend(
    attention: Attention, x: Tensor, positions: Tensor, shared: KeysValues, own: list[KeysValues], count: int
) -> Tensor:
    """[B * R, H]: row r of a text sees its rows 0 .. r, and row r of every `own`."""
    heads, groups = attention.shape.heads, attention.shape.heads // attention.shape.kv_heads

    def by_head(rows: Tensor, times: int = groups) -> Tensor:
        return rows.view(count, -1, *rows.shape[1:]).transpose(1, 2).repeat_interleave(times, dim=1)

    q = by_head(attention.queries(x, positions), 1)
    keys, values = by_head(shared[0]), by_head(shared[1])
    scores = q @ keys.transpose(2, 3)
    rows = scores.shape[-1]
    future = torch.ones(rows, rows, dtype=torch.bool, device=x.device).triu(1)
    scores = scores.masked_fill(future, float("-inf"))
    mine = [(by_head(k), by_head(v)) for k, v in own]
    extra = [(q * k).sum(-1, keepdim=True) for k, _ in mine]
    weights = torch.cat([scores, *extra], dim=-1).float().softmax(-1).to(values.dtype)
    out = weights[..., :rows] @ values
    for i, (_, v) in enumerate(mine):
        out = out + weights[..., rows + i, None] * v
    projected: Tensor = attention.o_proj(out.transpose(1, 2).reshape(count * rows, heads * attention.shape.dim))
    return projected
