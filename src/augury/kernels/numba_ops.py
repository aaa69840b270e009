"""The CPU face: float32 activations, float32 or bf16 weights, every row the same bits whatever its neighbours are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import set_num_threads
from torch import Tensor

from augury.kernels import fused, threads

threads.keep_compiled_code()  # numba chooses its cache directory when a kernel is declared

from augury.kernels import attention_numba, fused_numba, low_rank_numba, matrix_numba, packed_numba  # noqa: E402
from augury.kernels.vectors import LANES  # noqa: E402

if TYPE_CHECKING:
    from augury.kernels.low_rank import LowRankStack
    from augury.model.packed import Packed
    from augury.model.target import Rows

Array = np.ndarray[Any, Any]

VENDOR_ROWS = 64  # past this bf16 runs on the vendor's product
PANEL_ROWS = 128  # rows at a time, so that they stay in the second-level cache beside their unfinished sums
PARALLEL_WEIGHT = 1 << 16  # weights of a matrix below which waking threads costs more than they save
PARALLEL_SIGHT = 1 << 19  # multiply-adds of an attention below which it does
ALIGNED_ROWS = 4  # rows from which aligned activations are worth their slower allocation

_NOTHING = np.empty(0, np.float32)


@dataclass(slots=True)
class View:
    """A pass as numpy arrays."""

    positions: Array
    write: Array
    rows: tuple[Array, ...]  # positions, slots, context, base, ancestors, block_tables, and `first` alone
    block_size: int
    keys: int  # cache rows seen by all rows together, about


class NumbaOps:
    """See Ops."""

    def __init__(self) -> None:
        self._threads = threads.share_pool()

    def view(self, rows: Rows) -> View:
        """Take the arrays out of their tensors."""
        set_num_threads(self._threads)  # the limit holds in one thread alone, and a server steps in another
        fields = (rows.positions, rows.slots, rows.context, rows.base, rows.ancestors, rows.block_tables)
        arrays = tuple(np.ascontiguousarray(field.numpy()) for field in fields)
        first = np.array([rows.first], np.int64)
        return View(arrays[0], rows.write.numpy(), (*arrays, first), rows.block_size, int(arrays[2].sum()))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Row-invariant, except for many rows in bf16, where AMX is many times faster."""
        rows, width = x.shape
        vendor = weight.dtype != torch.float32 and rows > VENDOR_ROWS
        if vendor or width % LANES or len(weight) < 4 or weight.dtype == torch.float16:
            return fused.linear(x, weight, bias)
        out, array = _fresh(rows, len(weight))
        whole, matrix, added = _array(x), _lasting(weight), _optional(bias)
        for panel in _panels(rows):
            if self._threads > 1 and weight.numel() >= PARALLEL_WEIGHT:
                matrix_numba.linear_parallel(self._threads, whole[panel], matrix, added, array[panel])
            else:
                matrix_numba.linear_share(0, 1, whole[panel], matrix, added, array[panel])
        return out

    def packed_linear(self, x: Tensor, weight: Packed, bias: Tensor | None = None) -> Tensor:
        """Row-invariant."""
        codes, scales = _lasting(weight.codes), _lasting(weight.scales)
        out, array = _fresh(len(x), len(weight))
        whole = _array(x)
        for panel in _panels(len(x)):
            packed_numba.linear_packed(self._threads, whole[panel], codes, scales, _optional(bias), array[panel])
        return out

    def add_low_rank(self, out: Tensor, x: Tensor, stack: LowRankStack, adapters: Tensor) -> None:
        """Each row by itself; rows of the base cost nothing."""
        factors = _lasting(stack.down), _lasting(stack.up), stack.bounds.numpy()
        low_rank_numba.add_low_rank(_array(x), *factors, np.ascontiguousarray(adapters.numpy()), out.numpy())

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """One pass over each row."""
        out, array = _fresh(*x.shape)
        fused_numba.rms_norm(_array(x), _lasting(weight), eps, array)
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """One pass over each row; x becomes the new residual."""
        out, array = _fresh(*x.shape)
        fused_numba.add_rms_norm(_array(x), _array(residual), _lasting(weight), eps, array)
        return out, x

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """One pass over each row."""
        rows, width = gate_up.shape
        out, array = _fresh(rows, width // 2)
        fused_numba.silu_mul(_array(gate_up), array)
        return out

    def rotate_and_store(
        self,
        qkv: Tensor,
        view: View,
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
            _array(qkv),
            heads,
            view.positions,
            view.write,
            _lasting(rotary[0]),
            _lasting(rotary[1]),
            _lasting(keys),
            _lasting(values),
            _optional(q_norm),
            _optional(k_norm),
            eps,
        )
        return qkv[:, : heads * dim].unflatten(1, (heads, dim))

    def store(self, keys: Tensor, values: Tensor, view: View, key_cache: Tensor, value_cache: Tensor) -> None:
        """A plain copy."""
        _lasting(key_cache)[view.write] = keys.numpy()
        _lasting(value_cache)[view.write] = values.numpy()

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        view: View,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Rows and kv heads one by one, over threads where that pays."""
        rows, heads, _ = q.shape
        out = self._attend(_array(q).reshape(rows, -1), heads, keys, values, view, scale, window, softcap, sinks)
        return out.view(rows, heads, values.shape[2])

    def rotate_store_attend(
        self,
        qkv: Tensor,
        view: View,
        rotary: tuple[Tensor, Tensor],
        keys: Tensor,
        values: Tensor,
        scale: float,
        window: int = 0,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> Tensor:
        """Both on the same array: queries are turned in their place and read from there."""
        _, kv_heads, dim = keys.shape
        heads = qkv.shape[1] // dim - 2 * kv_heads
        array = _array(qkv)
        fused_numba.rotate_and_store(
            array,
            heads,
            view.positions,
            view.write,
            _lasting(rotary[0]),
            _lasting(rotary[1]),
            _lasting(keys),
            _lasting(values),
            _optional(q_norm),
            _optional(k_norm),
            eps,
        )
        return self._attend(array, heads, keys, values, view, scale, window, 0.0, None)

    def _attend(
        self,
        q: Array,
        heads: int,
        keys: Tensor,
        values: Tensor,
        view: View,
        scale: float,
        window: int,
        softcap: float,
        sinks: Tensor | None,
    ) -> Tensor:
        _, _, value_dim = values.shape
        out = torch.empty(len(q), heads * value_dim, dtype=torch.float32)  # aligned: it is added to again and again
        array, sinks_array = out.numpy(), _optional(sinks)
        caches = _lasting(keys), _lasting(values)
        given = q, *caches, view.rows, view.block_size, scale, window, softcap, sinks_array, array
        if self._threads > 1 and view.keys * heads * value_dim > PARALLEL_SIGHT:
            attention_numba.attend_parallel(self._threads, *given)
        else:
            attention_numba.attend_share(0, 1, *given)
        return out


def _panels(rows: int) -> list[slice]:
    """Rows in panels of nearly the same size: a short one would read the weights for little."""
    count = -(-rows // PANEL_ROWS)
    return [slice(rows * n // count, rows * (n + 1) // count) for n in range(count)]


def _fresh(rows: int, width: int) -> tuple[Tensor, Array]:
    """A new float32 tensor and its array.

    numpy allocates in a third of torch's time, torch on whole cache lines, which pays where many rows are read again.
    Only an array that does not hold the tensor may be kept on it: see _lasting.
    """
    if rows >= ALIGNED_ROWS:
        tensor = torch.empty(rows, width, dtype=torch.float32)
        return tensor, tensor.numpy()
    array = np.empty((rows, width), np.float32)
    tensor = torch.from_numpy(array)
    tensor._augury_view = array  # type: ignore[attr-defined]
    return tensor, array


def _array(tensor: Tensor) -> Array:
    """The numpy view of an activation; those made here bring it along."""
    view: Array | None = getattr(tensor, "_augury_view", None)
    return tensor.contiguous().numpy() if view is None else view


def _optional(tensor: Tensor | None) -> Array:
    return _NOTHING if tensor is None else _lasting(tensor)


def _lasting(tensor: Tensor) -> Array:
    """The numpy view of a weight or cache, kept on the tensor: making one takes as long as a small kernel.

    bf16 comes as the 16-bit integers that numba can read. The view must not hold the tensor itself: numpy takes no part
    in cycle collection, and a cache would never be freed.
    """
    view: Array | None = getattr(tensor, "_augury_view", None)
    if view is None:
        if not tensor.is_contiguous():
            raise ValueError("weights and caches must be contiguous")  # a copy would never see what is written later
        plain = tensor.detach()
        view = (plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain).numpy()
        tensor._augury_view = view  # type: ignore[attr-defined]
    return view
