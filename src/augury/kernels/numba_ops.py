"""The CPU face: float32 activations, float32 or bf16 weights, and the same bits for a row whatever rows are with it."""

from __future__ import annotations

from itertools import pairwise
from threading import local
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numba import set_num_threads
from torch import Tensor

from augury.kernels import experts as reference
from augury.kernels import fused, stored_code, threads

stored_code.load_lightly()
stored_code.compile_once()
threads.keep_compiled_code()  # numba chooses its cache directory when a kernel is declared

from augury.kernels import (  # noqa: E402
    attention_numba,
    digits_numba,
    experts_numba,
    fused_numba,
    low_rank_numba,
    machine,
    matrix_numba,
    packed_numba,
)
from augury.kernels.arrays import Array, array_of, fresh, lasting, optional, with_array  # noqa: E402
from augury.kernels.digits_numba import linear_digits  # noqa: E402
from augury.kernels.fused_layer import NOBODY, FusedLayers, PassArrays  # noqa: E402
from augury.kernels.layer_numba import PANEL_ROWS  # noqa: E402
from augury.kernels.quantized import Quantized  # noqa: E402
from augury.kernels.tiles import Tiled, tiled  # noqa: E402
from augury.kernels.vectors import LANES  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.kernels import AnyPacked, LayersRun
    from augury.kernels.low_rank import LowRankStack
    from augury.kernels.rows import Rows
    from augury.kernels.unpack import Packed
    from augury.model.layers import Layer

FEWEST = 4  # lines of a matrix that kernels take at a time
VENDOR_ROWS = 64  # past this bf16 runs on the vendor's product, if the machine has instructions for it
PARALLEL_SIGHT = 1 << 19  # multiply-adds of an attention below which waking threads costs more than they save
PARALLEL_WEIGHT = 1 << 16  # weights of a matrix below which waking threads costs more than they save


class NumbaOps:
    """See Ops."""

    def __init__(self) -> None:
        self._threads = threads.share_pool()
        self._here = local()
        self._attended = False

    def view(self, rows: Rows) -> PassArrays:
        """The rows as numpy arrays."""
        if getattr(self._here, "threads", 0) != self._threads:
            set_num_threads(self._threads)  # the limit is per thread, and a server steps in another
            self._here.threads = self._threads
        fields = (rows.positions, rows.slots, rows.context, rows.base, rows.ancestors)
        arrays = tuple(np.ascontiguousarray(field.numpy()) for field in fields)
        first = np.array([rows.first], np.int64)
        adapters = NOBODY if rows.adapters is None else np.ascontiguousarray(rows.adapters.numpy())
        return PassArrays(
            arrays[0],
            rows.write.numpy(),
            (*arrays, lasting(rows.block_tables), first),
            rows.block_size,
            int(np.add.reduce(arrays[2])),
            adapters,
        )

    def pick(self, x: Tensor, rows: Tensor) -> Tensor:
        """Index with numpy, which takes a fifth of torch's time for a few rows."""
        return with_array(array_of(x)[rows.numpy()])

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Row-invariant, except for many rows in bf16 on machines that multiply bf16, which is many times faster."""
        (rows, width), short = x.shape, FEWEST - len(weight)
        if short > 0:  # a router of two or three experts
            more = None if bias is None else F.pad(bias, (0, short))
            return self.linear(x, F.pad(weight, (0, 0, 0, short)), more)[:, :-short].contiguous()
        vendor = weight.dtype != torch.float32 and rows > VENDOR_ROWS and machine.BF16_PRODUCTS
        if vendor or width % LANES or weight.dtype == torch.float16:
            return fused.linear(x, weight, bias)
        out, array = fresh(rows, len(weight))
        whole, matrix, added = array_of(x), lasting(weight), optional(bias)
        for part, into in _panels(whole, array):
            if self._threads > 1 and weight.numel() >= PARALLEL_WEIGHT:
                matrix_numba.linear_parallel(self._threads, part, matrix, added, into)
            else:
                matrix_numba.linear_alone(part, matrix, added, into)
        return out

    def arrange(self, weight: Packed, fast: bool) -> AnyPacked:
        """In tiles for integer arithmetic if `fast`, or where that is as exact as float32 and faster."""
        if fast or machine.DOT_PRODUCTS:
            return tiled(weight, digits_numba.FAST if fast else digits_numba.EXACT)
        return weight

    def fused(self, layers: Sequence[Layer]) -> LayersRun:
        """Layers that are alike run in one call of compiled code, if all matrices of a layer are tiles of one kind."""
        return FusedLayers(layers, self._threads)

    def packed_linear(self, x: Tensor, weight: AnyPacked, bias: Tensor | None = None) -> Tensor:
        """Row-invariant; quantised matrices are unpacked when they are loaded."""
        if isinstance(weight, Quantized):
            return self.linear(x, weight.unpacked(), bias)
        whole = array_of(x)
        out, array = fresh(whole.shape[0], len(weight))
        added, panels = optional(bias), _panels(whole, array)
        if isinstance(weight, Tiled):
            for part, into in panels:
                linear_digits(self._threads, part, weight.tiles, weight.digits, added, into)
        else:
            codes, scales = lasting(weight.codes), lasting(weight.scales)
            for part, into in panels:
                packed_numba.linear_packed(self._threads, part, codes, scales, added, into)
        return out

    def add_low_rank(self, out: Tensor, x: Tensor, stack: LowRankStack, adapters: Tensor) -> None:
        """Each row by itself; rows without an adapter cost nothing."""
        factors = lasting(stack.down), lasting(stack.up), lasting(stack.bounds)
        low_rank_numba.add_low_rank(self._threads, array_of(x), factors, lasting(adapters), array_of(out))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """One pass over each row."""
        out, array = fresh(*x.shape)
        fused_numba.rms_norm(array_of(x), lasting(weight), eps, array)
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """One pass over each row; x becomes the new residual."""
        out, array = fresh(*x.shape)
        fused_numba.add_rms_norm(array_of(x), array_of(residual), lasting(weight), eps, array)
        return out, x

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """One pass over each row."""
        rows, width = gate_up.shape
        out, array = fresh(rows, width // 2)
        fused_numba.silu_mul(array_of(gate_up), array)
        return out

    def route(self, logits: Tensor, count: int, normalise: bool) -> tuple[Tensor, Tensor]:
        """Route each row by itself."""
        shares, array = fresh(len(logits), count)
        experts = torch.empty(len(logits), count, dtype=torch.int64)
        experts_numba.route(array_of(logits), normalise, array, experts.numpy())
        return shares, experts

    def run_experts(self, x: Tensor, gate_up: Tensor, down: Tensor, experts: Tensor, shares: Tensor) -> Tensor:
        """Row-invariant for any number of rows, except in sizes and types that `linear` leaves to torch."""
        (_, hidden, inner), kind = down.shape, down.dtype
        if hidden % LANES or inner % LANES or kind == torch.float16:
            return reference.run_experts(x, gate_up, down, experts, shares)
        pairs, begins, order = experts.numel(), np.empty(len(down) + 1, np.int64), np.empty(experts.numel(), np.int64)
        mine, both, opened, made = (np.empty((pairs, size), np.float32) for size in (hidden, 2 * inner, inner, hidden))
        experts_numba.gather(array_of(x), experts.numpy(), begins, order, mine)
        self._products(mine, gate_up, begins, both)
        fused_numba.silu_mul(both, opened)
        self._products(opened, down, begins, made)
        out, array = fresh(*x.shape)
        experts_numba.join(made, order, array_of(shares), array)
        return out

    def _products(self, x: Array, weights: Tensor, begins: Array, out: Array) -> None:
        """Each expert's rows times its matrix."""
        given = x, lasting(weights), begins, out
        if self._threads > 1 and weights[0].numel() >= PARALLEL_WEIGHT:
            experts_numba.products_parallel(self._threads, *given)
        else:
            experts_numba.products_share(0, 1, *given)

    def rotate_and_store(
        self,
        qkv: Tensor,
        view: PassArrays,
        rotary: tuple[Tensor, Tensor],
        keys: Tensor,
        values: Tensor,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> Tensor:
        """One pass over queries, keys and values; the queries stay where they are, so the result is a part of qkv."""
        _, kv_heads, dim = keys.shape
        heads = qkv.shape[1] // dim - 2 * kv_heads
        fused_numba.rotate_and_store(
            array_of(qkv),
            heads,
            view.positions,
            view.write,
            lasting(rotary[0]),
            lasting(rotary[1]),
            lasting(keys),
            lasting(values),
            optional(q_norm),
            optional(k_norm),
            eps,
        )
        return qkv[:, : heads * dim].unflatten(1, (heads, dim))

    def store(self, keys: Tensor, values: Tensor, view: PassArrays, key_cache: Tensor, value_cache: Tensor) -> None:
        """Copy keys and values into the cache."""
        lasting(key_cache)[view.write] = keys.numpy()
        lasting(value_cache)[view.write] = values.numpy()

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        view: PassArrays,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Rows and kv heads one by one, over threads where that pays."""
        rows, heads, _ = q.shape
        out = self._attend(array_of(q).reshape(rows, -1), heads, keys, values, view, scale, window, softcap, sinks)
        return out.view(rows, heads, values.shape[2])

    def rotate_store_attend(
        self,
        qkv: Tensor,
        view: PassArrays,
        rotary: tuple[Tensor, Tensor],
        keys: Tensor,
        values: Tensor,
        scale: float,
        window: int = 0,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> Tensor:
        """Both on the same array: queries are rotated in place and read from there."""
        _, kv_heads, dim = keys.shape
        heads = qkv.shape[1] // dim - 2 * kv_heads
        array = array_of(qkv)
        fused_numba.rotate_and_store(
            array,
            heads,
            view.positions,
            view.write,
            lasting(rotary[0]),
            lasting(rotary[1]),
            lasting(keys),
            lasting(values),
            optional(q_norm),
            optional(k_norm),
            eps,
        )
        return self._attend(array, heads, keys, values, view, scale, window, 0.0, None)

    def _attend(
        self,
        q: Array,
        heads: int,
        keys: Tensor,
        values: Tensor,
        view: PassArrays,
        scale: float,
        window: int,
        softcap: float,
        sinks: Tensor | None,
    ) -> Tensor:
        _, _, value_dim = values.shape
        out = torch.empty(len(q), heads * value_dim, dtype=torch.float32)  # aligned: it is added to again and again
        array, sinks_array = out.numpy(), optional(sinks)
        caches = lasting(keys), lasting(values)
        given = q, *caches, view.rows, view.block_size, scale, window, softcap, sinks_array, array
        several = view.keys * heads * value_dim > PARALLEL_SIGHT or not self._attended
        if self._threads > 1 and several:  # the first time in any case: the warm-up compiles what a long text needs
            self._attended = True
            attention_numba.attend_parallel(self._threads, *given)
        else:
            attention_numba.attend_share(0, 1, *given)
        return out


def _panels(x: Array, out: Array) -> list[tuple[Array, Array]]:
    """Rows and their results in panels of nearly the same size: a short one would read all weights for few rows."""
    rows = x.shape[0]
    if rows <= PANEL_ROWS:
        return [(x, out)]
    count = -(-rows // PANEL_ROWS)
    edges = [rows * n // count for n in range(count + 1)]
    return [(x[first:last], out[first:last]) for first, last in pairwise(edges)]
