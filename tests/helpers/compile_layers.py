"""Variants of the Triton kernels of layers and steps, for compile_kernels.py."""

from __future__ import annotations

from dataclasses import replace

import torch
from rows import Segment, make_rows, scattered_tables
from step_cases import slot_tables

from augury.engine.state import SlotState
from augury.kernels import (
    activation_triton,
    attend_plan_triton,
    attend_triton,
    draft_rows_triton,
    experts_triton,
    layout_triton,
    norm_triton,
    quantized_triton,
    resume_triton,
    rope_triton,
    route_triton,
    streams_triton,
    walk_triton,
)
from augury.kernels.quantized import FP8, Quantized
from augury.kernels.triton_ops import TritonOps
from augury.verify.tree import Draft

MODULES = (
    activation_triton,
    attend_plan_triton,
    attend_triton,
    draft_rows_triton,
    experts_triton,
    layout_triton,
    norm_triton,
    quantized_triton,
    resume_triton,
    rope_triton,
    route_triton,
    streams_triton,
    walk_triton,
)
KERNELS = {
    "_attend",
    "_plan",
    "_resume",
    "_rotate_and_store",
    "_rms_norm",
    "_add_rms_norm",
    "_silu_mul",
    "_linear",
    "_unpack",
    "_route",
    "_group",
    "_product",
    "_join",
    "_lay_out",
    "_walk",
    "_depths",
    "_fresh",
    "_level",
    "_gather",
}
BLOCK_SIZE, HIDDEN = 16, 4096


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16)


def layers(dim: int, heads: int, kv_heads: int, kind: torch.dtype = torch.bfloat16) -> None:
    """A layer's operations with heads of that size, for decoding and for reading a prompt; `kind` is the cache's."""
    ops, segments = TritonOps(), [Segment(slot, 20, [0] * 4, [-1, 0, 1, 1]) for slot in range(4)]
    batch = replace(make_rows(segments, scattered_tables(4), BLOCK_SIZE), chunked=True, groups=4)
    cache, view, count = half(65 * BLOCK_SIZE, kv_heads, dim).to(kind), ops.view(batch), len(batch.tokens)
    qkv, rotary = half(count, (heads + 2 * kv_heads) * dim), (torch.zeros(64, dim // 2), torch.zeros(64, dim // 2))
    norms = (half(dim), half(dim)) if dim == 128 else (None, None)  # Qwen's heads have them, Llama's do not
    for seen in (view, ops.view(replace(batch, chunked=False, groups=64))):  # few requests, prompts; many requests
        ops.rotate_store_attend(qkv, seen, rotary, cache, cache, dim**-0.5, 0, *norms, eps=1e-6)
    x, weight = half(count, HIDDEN), half(HIDDEN)
    ops.rms_norm(x, weight, 1e-6)
    ops.add_rms_norm(x, x, weight, 1e-6)
    ops.silu_mul(half(count, 2 * 14336))


def mixtures(few: bool) -> None:
    """A mixture of Qwen3-30B-A3B's shape by one row, and by as many as each tile is for."""
    experts, places, hidden, inner = 128, 8, 2048, 768
    for count in (1,) if few else (1, 256, 768, 4096):
        shares, chosen = route_triton.route(half(count, experts), places, True)
        experts_triton.run_experts(
            half(count, hidden), half(experts, 2 * inner, hidden), half(experts, hidden, inner), chosen, shares
        )
    if not few:  # Mixtral's
        route_triton.group(torch.zeros(1, 2, dtype=torch.int64), 8, 16)


def steps(nodes: int, branching: bool) -> None:
    """What a step does around the layers."""
    state = SlotState.allocate(8, 2000, nodes, BLOCK_SIZE, 128_256, torch.device("cpu"))
    table = torch.zeros(8, 8, dtype=torch.int64)
    state.make_tables()
    pending = state.draft
    given = table, state.history, state.block_tables, pending.tokens, pending.parents, 32, 32, BLOCK_SIZE, branching
    for masks in (None, state.length):
        layout_triton.lay_out(*given, masks)
    draft, ones = Draft.empty(8, nodes), torch.zeros(8, dtype=torch.int64)
    resume_triton.resume(table, state.length, state.alive, state.draft.count)
    for rates in (None, torch.zeros(nodes, dtype=torch.float64)):
        walk_triton.walk(
            torch.zeros(32, dtype=torch.int64), ones, draft, table, slot_tables(state), rates, nodes, branching
        )
    if branching:
        walk_triton.depths(draft)


def drafters() -> None:
    """Rows of a head's own passes, and the features for them."""
    state = SlotState.allocate(8, 2000, 3, BLOCK_SIZE, 128_256, torch.device("cpu"))
    ones, history, tables = torch.zeros(8, dtype=torch.int64), state.history, state.block_tables
    for masks in (0, 3):
        fresh = draft_rows_triton.fresh_rows(ones, ones, ones, history, tables, 40, BLOCK_SIZE, 1, masks, 5)
        streams_triton.gather_streams(
            (half(40, HIDDEN),),
            fresh.places,
            ones,
            ones,
            ones,
            state.draft.tokens,
            ones,
            ones,
            ones,
            tables,
            BLOCK_SIZE,
            half(100, HIDDEN),
            half(HIDDEN) if masks else None,
        )
    tokens = torch.zeros(8, 4, dtype=torch.int64)
    draft_rows_triton.level_rows(ones, ones, ones, tokens, tokens, tables, BLOCK_SIZE, 1, 0, 1, 1)
    draft_rows_triton.level_rows(ones, ones, ones, tokens[:, :1], None, tables, BLOCK_SIZE, 0, 1, 2, 1)


def launch_quantised(few: bool, eight_bits: bool) -> None:
    """Products with a scale for each line, for groups, with 4-bit codes, for few rows and for many; 8-bit caches."""
    outs, codes = 4096, torch.zeros(4096, HIDDEN, dtype=torch.uint8)
    factors = torch.zeros(HIDDEN // 128, outs), torch.zeros(HIDDEN // 128, outs, dtype=torch.uint8)
    by_line = Quantized(codes.view(FP8), torch.zeros(1, outs), HIDDEN)
    by_group = Quantized(codes.view(FP8), factors[0], 128)
    four_bits = Quantized(codes[:, : HIDDEN // 2].contiguous(), factors[0], 128, factors[1])
    floats = quantized_triton.NATIVE if eight_bits else quantized_triton.BITS
    every = (by_line, floats), (by_group, floats), (four_bits, quantized_triton.HALVES)
    for weight, kind in every:
        quantized_triton.linear(half(1, HIDDEN), weight, None, kind)
        quantized_triton.unpack(weight, torch.bfloat16, kind)
        if few:
            return
        quantized_triton.linear(half(64, HIDDEN), weight, None, kind)
    for count, steady in ((1, True), (512, False)):
        quantized_triton.linear(half(count, HIDDEN), by_line, None, floats, steady)
    if eight_bits:
        layers(128, 32, 8, FP8)


def launch(few: bool) -> None:
    """Layers with one size of heads or two, steps with chains and with trees of one size or two, and drafters."""
    layers(128, 32, 8)
    if not few:
        layers(64, 32, 8)
    steps(3, branching=False)
    steps(8, branching=True)
    if not few:
        steps(32, branching=True)
    drafters()
    mixtures(few)
