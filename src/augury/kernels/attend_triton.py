"""Attention over a paged cache on the GPU: rows of prompts and draft trees alike, walked by a persistent grid.

An item is one split of one tile's keys for one key head. A tile with one split writes its result at once; of several,
each leaves its unfinished sums in scratch memory, and the program that finishes last joins them in the order of their
positions, eight at a time and then their groups: the result does not depend on the order in which programs ran.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.ahead_triton import await_inputs, launched_ahead
from augury.kernels.attend_parts_triton import GROUP, LOG2_E, arrive, blocks, fetch, join, put, record, take
from augury.kernels.attend_plan_triton import DECODE_HEIGHT, DRAFT_HEIGHT, TilePlan, make_plan, programs

if TYPE_CHECKING:
    from augury.kernels.rows import Rows

LEAST_VALUES = 16  # a tile's values are padded to so many, because matrix instructions take no fewer
WIDEST = 256  # head dimensions past this are left to the torch face


class Grid(NamedTuple):
    """The persistent grid for one kind of forward pass."""

    keys: int  # read at a time
    per_processor: int  # programs
    warps: int  # of a program


# Decoding: up to 32 requests wait for memory, more for each other. How many keys are read at a time, and by how many
# warps, changes the order of sums, so it depends on the number of requests but never on the length of their drafts.
FEW, MANY = Grid(128, 4, 4), Grid(64, 4, 2)
PROMPTS, WIDE = Grid(64, 2, 4), Grid(32, 1, 4)  # reading prompts; anything in float32
MANY_REQUESTS = 33


@dataclass(slots=True)
class Scratch:
    """Unfinished sums of tiles with several splits, shared by all passes that need so much room."""

    sums: Tensor  # float32, used as [items * kv_heads, height, value_dim]
    tops: Tensor  # float32, used as [items * kv_heads, height, 2]: maxima and totals
    arrived: Tensor  # int32, used as [items * kv_heads]: splits done; back at zero after every pass


@dataclass(slots=True)
class View:
    """The rows of a pass, and the plans made for them so far, by the shape of the heads."""

    rows: Rows
    steady: bool = False  # exact mode: no sum depends on which requests share the pass
    plans: dict[tuple[int, int, int], list[TilePlan]] = field(default_factory=dict)


_scratch: dict[tuple[torch.device, int], Scratch] = {}


def supported(keys: Tensor, values: Tensor) -> bool:
    """Whether these kernels can read such a cache."""
    return max(keys.shape[2], values.shape[2]) <= WIDEST


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    view: View,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """See Ops.attend."""
    rows, heads, _ = q.shape
    kv_heads, value_dim = values.shape[1:]
    out = torch.empty(rows, heads, value_dim, dtype=q.dtype, device=q.device)
    # With 8-bit keys tall tiles may add in another order than low ones, and exact mode must not.
    low = view.steady and keys.element_size() == 1
    for plan in _plans(view, heads // kv_heads, kv_heads, value_dim, low):
        _launch(q, keys, values, view, plan, out, scale, window, softcap, sinks)
    return out


def _plans(view: View, shared_heads: int, kv_heads: int, value_dim: int, low: bool) -> list[TilePlan]:
    """Decode tiles, and in a pass that reads prompts the prompts' tiles apart from them: each kind has one height."""
    key = shared_heads, kv_heads, value_dim
    if key not in view.plans:  # one cache has one precision, so `low` is the same for all calls
        rows = replace(view.rows, groups=0) if low else view.rows
        kinds = (False, True) if rows.chunked else (False,)
        view.plans[key] = [make_plan(rows, *key, prompts, view.steady) for prompts in kinds]
    return view.plans[key]


def _room(plan: TilePlan, kv_heads: int, value_dim: int, device: torch.device) -> Scratch:
    """Scratch memory that stays where it is, so that captured graphs may point to it; prompts need none."""
    items = 1 if plan.prompts else plan.capacity * kv_heads
    numbers = items * max(plan.height, DRAFT_HEIGHT) * max(LEAST_VALUES, triton.next_power_of_2(value_dim))
    key = device, numbers
    if key not in _scratch:
        rows = numbers // LEAST_VALUES
        sums = torch.empty(numbers, dtype=torch.float32, device=device)
        tops = torch.empty(2 * rows, dtype=torch.float32, device=device)
        arrived = torch.zeros(rows // DECODE_HEIGHT, dtype=torch.int32, device=device)
        _scratch[key] = Scratch(sums, tops, arrived)
    return _scratch[key]


def _grid(kind: torch.dtype, view: View, plan: TilePlan) -> Grid:
    """The grid that walks a plan's items."""
    if kind == torch.float32:
        return WIDE
    if plan.prompts:
        return PROMPTS
    return MANY if view.rows.groups >= MANY_REQUESTS and not view.steady else FEW


def _launch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    view: View,
    plan: TilePlan,
    out: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> None:
    _, heads, key_dim = q.shape
    kv_heads, value_dim = values.shape[1:]
    room = _room(plan, kv_heads, value_dim, q.device)
    rows, grid = view.rows, _grid(q.dtype, view, plan)
    wide = grid is WIDE
    _attend[(programs(q.device, grid.per_processor),)](
        q,
        keys,
        values,
        out,
        out if sinks is None else sinks,
        rows.positions,
        rows.context,
        rows.base,
        rows.ancestors,
        rows.block_tables,
        plan.items,
        plan.totals,
        room.sums,
        room.tops,
        room.arrived,
        plan.capacity * kv_heads,
        rows.block_tables.stride(0),
        rows.first,
        scale,
        softcap,
        q.stride(0),
        q.stride(1),
        KV_HEADS=kv_heads,
        SHARED=heads // kv_heads,
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        BLOCK_KEY=max(LEAST_VALUES, triton.next_power_of_2(key_dim)),
        BLOCK_VALUE=max(LEAST_VALUES, triton.next_power_of_2(value_dim)),
        HEIGHT=plan.height,
        PER_TILE=plan.rows_per_tile,
        KEYS=grid.keys,
        BLOCK_SIZE=rows.block_size,
        WINDOW=window,
        SOFTCAP=bool(softcap),
        SINKS=sinks is not None,
        EXACT=wide,
        PROMPTS=plan.prompts,
        num_warps=grid.warps,
        num_stages=2 if wide else 3,
        **launched_ahead(q),
    )


@triton.jit(do_not_specialize=["most", "table_stride", "first_key"])
def _attend(
    q,
    keys,
    values,
    out,
    sinks,
    positions,
    context,
    base,
    ancestors,
    block_tables,
    items,
    totals,
    sums,
    tops,
    arrived,
    most,
    table_stride,
    first_key,
    scale,
    softcap,
    q_row,
    q_head,
    KV_HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    HEIGHT: tl.constexpr,
    PER_TILE: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    EXACT: tl.constexpr,
    PROMPTS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    await_inputs(AHEAD)
    m = tl.arange(0, HEIGHT)
    dk, dv = tl.arange(0, BLOCK_KEY), tl.arange(0, BLOCK_VALUE)
    work = tl.program_id(0)
    total = tl.load(totals) * KV_HEADS
    # The record is fetched along with the total: whether the item exists is known once both have arrived.
    begin, size, slot, first, last, splits, first_item, shared = record(items, work // KV_HEADS, work < most)
    while work < total:
        item, kv = work // KV_HEADS, work % KV_HEADS
        row, head = begin + m // SHARED, kv * SHARED + m % SHARED
        used = m < size * SHARED
        seen = tl.load(context + row, mask=used, other=0)
        root = tl.load(base + row, mask=used, other=0)
        bits = tl.load(ancestors + row, mask=used, other=0)
        place = tl.load(positions + row, mask=used & (WINDOW != 0), other=0)
        query = tl.load(
            q + row[:, None].to(tl.int64) * q_row + head[:, None] * q_head + dk[None, :],
            mask=used[:, None] & (dk < KEY_DIM)[None, :],
            other=0.0,
        )
        table = block_tables + slot * table_stride
        # The next item's record is fetched while this one's keys are read: one wait for memory less between two items.
        next_work = work + tl.num_programs(0)
        next_record = record(items, next_work // KV_HEADS, next_work < most)

        top = tl.full([HEIGHT], float("-inf"), tl.float32)
        weight = tl.zeros([HEIGHT], tl.float32)
        sum_ = tl.zeros([HEIGHT, BLOCK_VALUE], tl.float32)
        if PROMPTS:
            # Keys that every row sees need no mask; those of the draft, the window and the end do.
            plain = tl.maximum(tl.minimum(shared, last) - first, 0) // KEYS * KEYS
            plain = tl.where((first < first_key) | (WINDOW != 0), 0, plain)
            for start in range(first, first + plain, KEYS):
                block = blocks(table, start, last, KEYS, BLOCK_SIZE)
                key, value = fetch(
                    keys,
                    values,
                    block,
                    start,
                    last,
                    kv,
                    KV_HEADS,
                    KEY_DIM,
                    VALUE_DIM,
                    BLOCK_KEY,
                    BLOCK_VALUE,
                    KEYS,
                    BLOCK_SIZE,
                )
                top, weight, sum_ = take(
                    start,
                    last,
                    key,
                    value,
                    query,
                    scale,
                    softcap,
                    top,
                    weight,
                    sum_,
                    seen,
                    root,
                    bits,
                    place,
                    first_key,
                    0,
                    KEYS,
                    WINDOW,
                    SOFTCAP,
                    EXACT,
                    "never",
                )
            for start in range(first + plain, last, KEYS):
                block = blocks(table, start, last, KEYS, BLOCK_SIZE)
                key, value = fetch(
                    keys,
                    values,
                    block,
                    start,
                    last,
                    kv,
                    KV_HEADS,
                    KEY_DIM,
                    VALUE_DIM,
                    BLOCK_KEY,
                    BLOCK_VALUE,
                    KEYS,
                    BLOCK_SIZE,
                )
                top, weight, sum_ = take(
                    start,
                    last,
                    key,
                    value,
                    query,
                    scale,
                    softcap,
                    top,
                    weight,
                    sum_,
                    seen,
                    root,
                    bits,
                    place,
                    first_key,
                    0,
                    KEYS,
                    WINDOW,
                    SOFTCAP,
                    EXACT,
                    "always",
                )
        else:
            # Decoding waits for memory. Triton's pipeline, which would carry block numbers, keys and values through
            # shared memory, is slower than loading all keys of a turn at once, and the next block numbers with them.
            block = blocks(table, first, last, KEYS, BLOCK_SIZE)
            for start in tl.range(first, last, KEYS, num_stages=1):
                key, value = fetch(
                    keys,
                    values,
                    block,
                    start,
                    last,
                    kv,
                    KV_HEADS,
                    KEY_DIM,
                    VALUE_DIM,
                    BLOCK_KEY,
                    BLOCK_VALUE,
                    KEYS,
                    BLOCK_SIZE,
                )
                block = blocks(table, start + KEYS, last, KEYS, BLOCK_SIZE)
                top, weight, sum_ = take(
                    start,
                    last,
                    key,
                    value,
                    query,
                    scale,
                    softcap,
                    top,
                    weight,
                    sum_,
                    seen,
                    root,
                    bits,
                    place,
                    first_key,
                    shared,
                    KEYS,
                    WINDOW,
                    SOFTCAP,
                    EXACT,
                    "late",
                )

        done = splits == 1
        if not PROMPTS:  # prompts' tiles walk all their keys
            if splits > 1:
                put(sums, tops, item, kv, top, weight, sum_, KV_HEADS, HEIGHT, BLOCK_VALUE)
                group = first_item + (item - first_item) // GROUP * GROUP  # its first item
                mine = tl.minimum(first_item + splits - group, GROUP)
                done = arrive(arrived + group * KV_HEADS + kv, mine)
                if done:
                    top, weight, sum_ = join(sums, tops, group, 1, mine, kv, KV_HEADS, HEIGHT, BLOCK_VALUE)
                    if splits > GROUP:
                        tl.debug_barrier()  # all of the group is read before its sum takes the first one's place
                        put(sums, tops, group, kv, top, weight, sum_, KV_HEADS, HEIGHT, BLOCK_VALUE)
                        groups = tl.cdiv(splits, GROUP)
                        done = arrive(arrived + (first_item + 1) * KV_HEADS + kv, groups)  # of the tile's second item
                        if done:
                            top, weight, sum_ = join(
                                sums, tops, first_item, GROUP, groups, kv, KV_HEADS, HEIGHT, BLOCK_VALUE
                            )
        if done:
            if SINKS:
                sink = tl.load(sinks + head, mask=used, other=0.0).to(tl.float32)
                higher = tl.maximum(top, sink)
                fade = tl.exp2((top - higher) * LOG2_E)
                weight = weight * fade + tl.exp2((sink - higher) * LOG2_E)
                sum_ = sum_ * fade[:, None]
            result = sum_ / tl.where(weight > 0, weight, 1.0)[:, None]
            to = out + (row[:, None].to(tl.int64) * (KV_HEADS * SHARED) + head[:, None]) * VALUE_DIM + dv[None, :]
            tl.store(to, result.to(out.dtype.element_ty), mask=used[:, None] & (dv < VALUE_DIM)[None, :])
        work = next_work
        begin, size, slot, first, last, splits, first_item, shared = next_record
