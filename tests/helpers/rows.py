"""Make Rows from segments: (slot, start, tokens) is a run of known tokens, with parents it is a draft tree."""

from __future__ import annotations

from typing import NamedTuple

import torch

from augury.kernels.rows import Rows
from augury.model.states import States
from augury.model.target import KVCache, Target

BLOCK_SIZE = 4
MAX_BLOCKS = 16
NODES = 16  # of a draft
SAVED = 4  # states that can be saved


class Segment(NamedTuple):
    """Tokens of one slot from cache row `start` on; tree nodes name their parents, -1 being the last known token."""

    slot: int
    start: int
    tokens: list[int]
    parents: list[int] | None = None


def scattered_tables(slots: int, blocks: int = MAX_BLOCKS, seed: int = 0) -> torch.Tensor:
    """Block tables in which no two logical neighbours are physical ones; block 0 is nobody's."""
    order = torch.randperm(slots * blocks, generator=torch.Generator().manual_seed(seed)) + 1
    return order.view(slots, blocks)


def make_rows(segments: list[Segment], tables: torch.Tensor, block_size: int = BLOCK_SIZE, padding: int = 0) -> Rows:
    """Lay segments out as packed rows, all of them wanted, with padding rows behind."""
    table: list[list[int]] = []  # token, position, slot, context, base, ancestors, write
    for slot, start, tokens, parents in segments:
        bits: list[int] = []
        for i, token in enumerate(tokens):
            row = start + i
            write = int(tables[slot, row // block_size]) * block_size + row % block_size
            if parents is None:
                table.append([token, row, slot, row + 1, 0, 0, write])
                continue
            bits.append((bits[parents[i]] if parents[i] >= 0 else 0) | 1 << i)
            table.append([token, start - 1 + bits[i].bit_count(), slot, start, start, bits[i], write])
    live = len(table)
    table += [[0] * 7] * padding
    tokens, positions, slots, context, base, ancestors, write = torch.tensor(table, dtype=torch.int64).T.contiguous()
    reach = max((s.start + len(s.tokens) for s in segments), default=1)
    return Rows(
        tokens,
        positions,
        slots,
        context,
        base,
        ancestors,
        write,
        torch.arange(live),
        tables,
        block_size,
        span=max(8, -(-reach // 8) * 8),
    )


def to(rows: Rows, device: torch.device) -> Rows:
    """The same rows on another device."""
    moved = {name: getattr(rows, name) for name in Rows.__dataclass_fields__}
    return Rows(**{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in moved.items()})


def give_cache(target: Target, slots: int, blocks: int = MAX_BLOCKS, block_size: int = BLOCK_SIZE) -> None:
    """Room for `slots` sequences and the null block."""
    rows = (slots * blocks + 1) * block_size
    target.cache = KVCache.allocate(target.layer_shapes, rows, target.cache_dtype, target.device)
    if target.state_shapes:
        target.cache.states = States.allocate(target.state_shapes, slots + 1, NODES, SAVED, target.device)
