"""The CPU face: float32 activations, float32 or bf16 weights, every row the same bits whatever its neighbours are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from augury.kernels import fused, threads

threads.keep_compiled_code()  # numba chooses its cache directory when a kernel is declared

from augury.kernels import attention_numba, fused_numba, matrix_numba  # noqa: E402
from augury.kernels.simd import LANES  # noqa: E402

if TYPE_CHECKING:
    from augury.model.target import Rows

Array = np.ndarray[Any, Any]

EXACT_ROWS = 64  # up to here a matrix product is row-invariant; past it MKL and AMX are faster and prompts run there
PARALLEL_WEIGHT = 1 << 16  # weights of a matrix below which waking threads costs more than they save
PARALLEL_SIGHT = 1 << 20  # multiply-adds of an attention below which it does

_NOTHING = np.empty(0, np.float32)


@dataclass(slots=True)
class View:
    """A pass as numpy arrays."""

    positions: Array
    write: Array
    rows: tuple[Array, ...]  # positions, slots, context, base, ancestors, block_tables
    block_size: int
    keys: int  # cache rows seen by all rows together, about


class NumbaOps:
    """See Ops."""

    def __init__(self) -> None:
        self._threads = threads.share_pool()

    def view(self, rows: Rows) -> View:
        """Take the arrays out of their tensors."""
        fields = (rows.positions, rows.slots, rows.context, rows.base, rows.ancestors, rows.block_tables)
        arrays = tuple(np.ascontiguousarray(field.numpy()) for field in fields)
        return View(arrays[0], rows.write.numpy(), arrays, rows.block_size, int(arrays[2].sum()))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Few rows run row-invariant; many rows run on the vendor's matrix product."""
        rows, width = x.shape
        if rows > EXACT_ROWS or width % LANES or len(weight) < 4 or weight.dtype == torch.float16:
            return fused.linear(x, weight, bias)
        out = torch.empty(rows, len(weight))
        arrays = _array(x), _lasting(weight), _optional(bias), out.numpy()
        if self._threads > 1 and weight.numel() >= PARALLEL_WEIGHT:
            matrix_numba.linear_parallel(*arrays, self._threads)
        else:
            matrix_numba.linear_serial(*arrays)
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """One pass over each row."""
        out = torch.empty_like(x)
        fused_numba.rms_norm(_array(x), _lasting(weight), np.float32(eps), out.numpy())
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """One pass over each row; x becomes the new residual."""
        out = torch.empty_like(x)
        fused_numba.add_rms_norm(_array(x), _array(residual), _lasting(weight), np.float32(eps), out.numpy())
        return out, x

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """One pass over each row."""
        out = torch.empty(len(gate_up), gate_up.shape[1] // 2)
        fused_numba.silu_mul(_array(gate_up), out.numpy())
        return out

    def rotate_and_store(
        self, qkv: Tensor, view: View, rotary: tuple[Tensor, Tensor], keys: Tensor, values: Tensor,
        q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 0.0,
    ) -> Tensor:  # fmt: skip
        """One pass over queries, keys and values; qkv is used up."""
        _, kv_heads, dim = keys.shape
        heads = qkv.shape[1] // dim - 2 * kv_heads
        q = torch.empty(len(qkv), heads, dim)
        fused_numba.rotate_and_store(
            _array(qkv).reshape(len(qkv), heads + 2 * kv_heads, dim), view.positions, view.write,
            _lasting(rotary[0]), _lasting(rotary[1]), _lasting(keys), _lasting(values),
            _optional(q_norm), _optional(k_norm), np.float32(eps), q.numpy(),
        )  # fmt: skip
        return q

    def store(self, keys: Tensor, values: Tensor, view: View, key_cache: Tensor, value_cache: Tensor) -> None:
        """A plain copy."""
        _lasting(key_cache)[view.write] = keys.numpy()
        _lasting(value_cache)[view.write] = values.numpy()

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, view: View, scale: float,
        window: int = 0, softcap: float = 0.0, sinks: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Rows and kv heads one by one, over threads where that pays."""
        rows, heads, key_dim = q.shape
        kv_heads, value_dim = values.shape[1:]
        out = torch.empty(rows, heads, value_dim)
        arguments = (
            _array(q).reshape(rows, -1), _lasting(keys).reshape(-1), _lasting(values).reshape(-1),
            (kv_heads, heads // kv_heads, key_dim, value_dim), view.rows, view.block_size,
            np.float32(scale), window, np.float32(softcap), _optional(sinks), out.numpy().reshape(rows, -1),
        )  # fmt: skip
        if self._threads > 1 and view.keys * heads * (key_dim + value_dim) > PARALLEL_SIGHT:
            attention_numba.attend_parallel(*arguments, self._threads)
        else:
            attention_numba.attend_serial(*arguments)
        return out


def _array(tensor: Tensor) -> Array:
    return tensor.contiguous().numpy()


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
