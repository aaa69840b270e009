"""Attention over a paged cache, rows of prompts and draft trees alike: the torch reference, for any device.

Static shapes from the number of rows and `rows.span` alone, no host sync: it runs inside a captured CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from augury.kernels.rows import Rows

GATHER_BUDGET = 1 << 28  # bytes of keys gathered at a time
MAX_BITS = 63


@dataclass(slots=True)
class VisibleKeys:
    """What each row sees, [R, span]: physical cache rows, their key positions, and whether they count."""

    rows: Rows
    physical: Tensor
    key_positions: Tensor
    visible: Tensor


def look(rows: Rows) -> VisibleKeys:
    """Resolve block tables and ancestor bits once for all layers."""
    logical = torch.arange(rows.span, device=rows.tokens.device)
    blocks = rows.block_tables[rows.slots]
    block = blocks[:, (logical // rows.block_size).clamp(max=blocks.shape[1] - 1)]
    physical = block * rows.block_size + logical % rows.block_size

    node = logical - rows.base[:, None]
    inside = (node >= 0) & (node < MAX_BITS)
    bits = (rows.ancestors[:, None] >> node.clamp(0, MAX_BITS - 1)) & 1
    ancestor = inside & (bits == 1)
    depth = ancestor.to(torch.int64).cumsum(1)
    in_context = logical < rows.context[:, None]
    key_positions = torch.where(in_context, logical, rows.base[:, None] - 1 + depth)
    return VisibleKeys(rows, physical, key_positions, (in_context & (logical >= rows.first)) | ancestor)


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    view: VisibleKeys,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """See Ops.attend; keys are gathered for a tile of rows at a time."""
    visible = view.visible
    if window:
        place = view.rows.positions[:, None]
        near = place - view.key_positions < window if window > 0 else view.key_positions >= place - place % -window
        visible = visible & near
    row_bytes = view.physical.shape[1] * keys[0].numel() * keys.element_size()
    tile = max(1, GATHER_BUDGET // max(1, row_bytes))
    tiles = zip(q.split(tile), view.physical.split(tile), visible.split(tile), strict=True)
    parts = [_attend_tile(rows, keys, values, where, seen, scale, softcap, sinks) for rows, where, seen in tiles]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_tile(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    physical: Tensor,
    visible: Tensor,
    scale: float,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    rows, heads, key_dim = q.shape
    kv_heads = keys.shape[1]
    grouped = q.view(rows, kv_heads, heads // kv_heads, key_dim)
    seen_keys, seen_values = (cache[physical].to(_wide(cache, q)) for cache in (keys, values))
    scores = torch.matmul(grouped, seen_keys.permute(0, 2, 3, 1)).float() * scale  # [R, KVH, G, span]
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    # A finite floor, so that a row that sees nothing stays free of NaN.
    scores = scores.masked_fill(~visible[:, None, None, :], torch.finfo(torch.float32).min)
    top = scores.amax(-1, keepdim=True)
    if sinks is not None:
        sink = sinks.float().view(1, kv_heads, heads // kv_heads, 1)
        top = torch.maximum(top, sink)
    weights = torch.exp(scores - top) * visible[:, None, None, :]
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sink - top)
    weights = weights / total.clamp(min=torch.finfo(torch.float32).tiny)
    out = torch.matmul(weights.to(seen_values.dtype), seen_values.transpose(1, 2))
    return out.reshape(rows, heads, values.shape[2])


def _wide(cache: Tensor, q: Tensor) -> torch.dtype:
    """The type in which keys and values are multiplied: their own, or the queries' if they have 8 bits."""
    return q.dtype if cache.element_size() == 1 else cache.dtype


def store(rows: Tensor, cache: Tensor, write: Tensor) -> None:
    """Write rows to a cache, in its type; values that 8 bits cannot hold are clamped to the largest that they can."""
    if cache.element_size() == 1:
        rows = rows.clamp(-torch.finfo(cache.dtype).max, torch.finfo(cache.dtype).max)
    cache[write] = rows.to(cache.dtype)
