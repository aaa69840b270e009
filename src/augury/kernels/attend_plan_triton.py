"""The work of attention in one forward pass, planned on the device once and used by every layer.

Rows of one slot lie together, so they are cut into *tiles* of a few rows that read the same keys; a tile's keys are cut
into *splits* of one size. In exact mode that size is fixed, so that how a sum is associated never depends on the batch;
otherwise it grows with all the keys of the pass: one short text is read by many programs at once, and of many texts
none is cut without need. The list of (tile, split) items is built by one program: nothing waits for the host, and no
shape depends on a length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from augury.kernels.rows import Rows

SPLIT = 512  # keys of one item in exact mode
LEAST_SPLIT = 128  # otherwise; a power of two, as all sizes are
WHOLE = 1 << 30  # a split that no context reaches: prompt tiles walk all their keys
# Query rows (rows x heads that share a key head) of a tile: one matrix instruction's, or two where a request has drafts
# that would take a second tile, which would read the same keys again. Taller tiles have the bits of low ones.
DECODE_HEIGHT, DRAFT_HEIGHT = 16, 32
PROMPT_HEIGHT = 64
PROMPT_ROWS = 64  # a slot with more rows than this in a pass is reading a prompt
SCRATCH_BYTES = 256 << 20  # for the unfinished sums of tiles with more than one split
AT_ONCE = 2048  # rows read at once; many more take minutes to compile
INTERPRETED_PROGRAMS = 4
# An item in one cache line, so that a program reads its work at once: first row, rows, slot, first key, end of
# its keys, splits of the tile, the tile's first item, keys that every row sees.
FIELDS = 8


@dataclass(slots=True)
class TilePlan:
    """The items (splits of tiles) of one kind of tile."""

    items: Tensor  # int32 [capacity, 8]: see FIELDS
    totals: Tensor  # int32 [2]: items, keys of a split
    height: int  # query rows of a tile
    rows_per_tile: int
    capacity: int
    prompts: bool  # tiles of prompts: taller, and never split


def make_plan(
    rows: Rows, shared_heads: int, kv_heads: int, value_dim: int, prompts: bool, steady: bool = False
) -> TilePlan:
    """Plan the tiles of prompts or of everything else; `steady`: in splits of one size, for exact mode."""
    height = _height(rows, shared_heads, prompts)
    per_tile = height // shared_heads
    count, device = len(rows.tokens), rows.tokens.device
    # By the larger height for both, so that a pass with drafts has the splits of one without.
    tallest = max(DRAFT_HEIGHT, height)
    capacity = count if prompts else max(count, SCRATCH_BYTES // (4 * kv_heads * value_dim * tallest))
    adapts = not (prompts or steady)
    items = torch.empty(capacity, FIELDS, dtype=torch.int32, device=device)
    totals = torch.empty(2, dtype=torch.int32, device=device)
    _plan[(1,)](
        rows.slots,
        rows.context,
        rows.base,
        rows.ancestors,
        items,
        totals,
        count,
        capacity,
        WHOLE if prompts else LEAST_SPLIT if adapts else SPLIT,
        max(1, programs(device, 2) // kv_heads) if adapts else WHOLE,
        PER_TILE=per_tile,
        PROMPT_ROWS=PROMPT_ROWS,
        CHUNKED=rows.chunked,
        PROMPTS=prompts,
        BLOCK=min(few_sizes(count), AT_ONCE),
        ONE=count <= AT_ONCE,
        num_warps=8,
    )
    return TilePlan(items, totals, height, per_tile, capacity, prompts)


def _height(rows: Rows, shared_heads: int, prompts: bool) -> int:
    """How many query rows a tile has."""
    one = triton.next_power_of_2(shared_heads)
    if prompts:
        return max(PROMPT_HEIGHT, one)
    most = shared_heads * triton.cdiv(len(rows.tokens), rows.groups) if rows.groups else 0  # of a request
    return max(DRAFT_HEIGHT if most > DECODE_HEIGHT else DECODE_HEIGHT, one)


def few_sizes(count: int) -> int:
    """`count` rounded up to one of a few powers of two: every new size is another kernel to compile."""
    size = 128
    while size < count:
        size *= 4
    return size


@cache
def programs(device: torch.device, per_processor: int) -> int:
    """How many programs a persistent grid has."""
    if device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return per_processor * torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit(do_not_specialize=["count", "capacity", "split", "abreast"])
def _plan(
    slots,
    context,
    base,
    ancestors,
    items,
    totals,
    count,
    capacity,
    split,
    abreast,
    PER_TILE: tl.constexpr,
    PROMPT_ROWS: tl.constexpr,
    CHUNKED: tl.constexpr,
    PROMPTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE: tl.constexpr,
):
    """Write all items; doubles `split` until `abreast` splits could hold all keys and all items fit in `capacity`."""
    if ONE:  # all rows at once
        head, r, size, slot, reach, shared, _ = _tiles(
            slots, context, base, ancestors, 0, count, 0, PER_TILE, PROMPT_ROWS, CHUNKED, PROMPTS, BLOCK
        )
        keys = tl.sum(tl.where(head, reach, 0).to(tl.int64), 0)
        splits = _splits(head, reach, split)
        # There are more items than fit only where many long requests share their blocks.
        while (tl.sum(splits, 0) > capacity) | (split.to(tl.int64) * abreast < keys):
            split = split * 2
            splits = _splits(head, reach, split)
        total = _put(items, 0, r, size, slot, reach, shared, splits, split)
    else:
        needed, keys = capacity + 1, tl.zeros([], tl.int64)
        split = split // 2
        while (needed > capacity) | (split.to(tl.int64) * abreast < keys):
            split, needed, slot_start, keys = split * 2, 0, 0, tl.zeros([], tl.int64)
            for begin in range(0, count, BLOCK):
                head, r, size, slot, reach, shared, slot_start = _tiles(
                    slots,
                    context,
                    base,
                    ancestors,
                    begin,
                    count,
                    slot_start,
                    PER_TILE,
                    PROMPT_ROWS,
                    CHUNKED,
                    PROMPTS,
                    BLOCK,
                )
                needed += tl.sum(_splits(head, reach, split), 0)
                keys += tl.sum(tl.where(head, reach, 0).to(tl.int64), 0)
        total, slot_start = 0, 0
        for begin in range(0, count, BLOCK):
            head, r, size, slot, reach, shared, slot_start = _tiles(
                slots,
                context,
                base,
                ancestors,
                begin,
                count,
                slot_start,
                PER_TILE,
                PROMPT_ROWS,
                CHUNKED,
                PROMPTS,
                BLOCK,
            )
            total = _put(items, total, r, size, slot, reach, shared, _splits(head, reach, split), split)
    tl.store(totals, total)
    tl.store(totals + 1, split)


@triton.jit
def _tiles(
    slots,
    context,
    base,
    ancestors,
    begin,
    count,
    slot_start,
    PER_TILE: tl.constexpr,
    PROMPT_ROWS: tl.constexpr,
    CHUNKED: tl.constexpr,
    PROMPTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The tiles that begin in some rows: which rows those are, their sizes and slots, how far any and all of them see.

    `slot_start` is the first row of the slot that the rows before these ended in; returns the same for the next.
    """
    r = begin + tl.arange(0, BLOCK)
    real = r < count
    slot = tl.load(slots + r, mask=real, other=-1)
    before = tl.load(slots + r - 1, mask=real & (r > 0), other=-2)
    starts = tl.where(slot != before, r, tl.where(r == begin, slot_start, 0))
    start = tl.associative_scan(starts, 0, _larger)  # the first row of this row's slot
    head = real & ((r - start) % PER_TILE == 0)
    if CHUNKED:
        ahead = tl.load(slots + start + PROMPT_ROWS, mask=real & (start + PROMPT_ROWS < count), other=-3)
        head = head & ((ahead == slot) == PROMPTS)
    # A tile's keys reach as far as any of its rows sees.
    reach, shared = tl.zeros([BLOCK], tl.int64), tl.full([BLOCK], 1 << 30, tl.int64)
    size = tl.zeros([BLOCK], tl.int32)
    for i in range(PER_TILE):
        row = r + i
        mine = head & (row < count) & (tl.load(slots + row, mask=row < count, other=-4) == slot)
        seen = tl.load(context + row, mask=mine, other=0)
        bits = tl.load(ancestors + row, mask=mine, other=0)
        nodes = tl.load(base + row, mask=mine, other=0) + highest_bit(bits) + 1
        reach = tl.maximum(reach, tl.maximum(seen, tl.where(bits != 0, nodes, 0)))
        shared = tl.where(mine, tl.minimum(shared, seen), shared)
        size += mine.to(tl.int32)
    return head, r, size, slot, reach.to(tl.int32), shared, tl.max(starts, 0)


@triton.jit
def _splits(head, reach, split):
    """Splits of each tile; a tile that sees no keys still has one, which writes its zeros."""
    return tl.where(head, tl.maximum(tl.cdiv(reach, split), 1), 0)


@triton.jit
def _put(items, total, r, size, slot, reach, shared, splits, split):
    """Write the items of some tiles after the first `total`; returns how many there are now."""
    first = total + tl.cumsum(splits, 0) - splits
    for i in range(tl.max(splits, 0)):
        to, mine = items + 8 * (first + i), i < splits
        tl.store(to, r, mask=mine)
        tl.store(to + 1, size, mask=mine)
        tl.store(to + 2, slot.to(tl.int32), mask=mine)
        tl.store(to + 3, tl.zeros_like(r) + i * split, mask=mine)
        tl.store(to + 4, tl.minimum(reach, i * split + split), mask=mine)
        tl.store(to + 5, splits, mask=mine)
        tl.store(to + 6, first, mask=mine)
        tl.store(to + 7, shared.to(tl.int32), mask=mine)
    return total + tl.sum(splits, 0)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def highest_bit(bits):
    """The number of the highest bit set in a positive integer."""
    high = tl.zeros_like(bits)
    for k in tl.static_range(6):
        above = bits >> (32 >> k)
        high += tl.where(above > 0, 32 >> k, 0)
        bits = tl.where(above > 0, above, bits)
    return high
