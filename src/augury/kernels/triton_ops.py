"""The GPU face: Triton kernels, one launch per operation; many rows are multiplied by cuBLAS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from augury.kernels import (
    activation_triton,
    attend_triton,
    attention,
    experts_triton,
    fused,
    low_rank,
    norm_triton,
    quantized_triton,
    rope_triton,
    route_triton,
    stream_triton,
    tuned_cublas,
)
from augury.kernels.attend_triton import View
from augury.kernels.quantized import Quantized
from augury.kernels.step_by_step import StepByStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.kernels import AnyPacked
    from augury.kernels.rows import Rows
    from augury.kernels.unpack import Packed
    from augury.model.layers import Layer

UNPACKED_ROWS = 512  # from here on a quantised matrix is written out for cuBLAS, whose product takes longer than that


class TritonOps:
    """See Ops."""

    def view(self, rows: Rows) -> View:
        """The plan is made when the first layer needs it, because tiles depend on its heads."""
        return View(rows)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply by our own kernel where few rows wait for a large matrix, else by cuBLAS."""
        out = stream_triton.linear(x, weight, bias)
        if out is None and bias is None:
            out = tuned_cublas.linear(x, weight)
        return fused.linear(x, weight, bias) if out is None else out

    add_low_rank = staticmethod(low_rank.add_low_rank)
    rms_norm = staticmethod(norm_triton.rms_norm)
    add_rms_norm = staticmethod(norm_triton.add_rms_norm)
    silu_mul = staticmethod(activation_triton.silu_mul)
    route = staticmethod(route_triton.route)
    run_experts = staticmethod(experts_triton.run_experts)

    def pick(self, x: Tensor, rows: Tensor) -> Tensor:
        """Index the rows."""
        return x[rows]

    def fused(self, layers: Sequence[Layer]) -> StepByStep:
        """No layers are fused here; a pass of few rows is replayed as one graph."""
        return StepByStep(layers)

    def arrange(self, weight: Packed, fast: bool) -> Packed:
        """The matrix unchanged: packed matrices are for CPUs."""
        return weight

    def packed_linear(self, x: Tensor, weight: AnyPacked, bias: Tensor | None = None) -> Tensor:
        """Few rows read the codes; for many the matrix is unpacked first."""
        if not isinstance(weight, Quantized):
            return fused.linear(x, weight.unpacked(), bias)
        if len(x) >= UNPACKED_ROWS:
            return fused.linear(x, quantized_triton.unpack(weight, x.dtype), bias)
        return quantized_triton.linear(x, weight, bias)

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
        """Normalise, rotate and store in one kernel."""
        rows = view.rows
        return rope_triton.rotate_and_store(qkv, rows.positions, rows.write, rotary, keys, values, q_norm, k_norm, eps)

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
        """Run the two in turn."""
        q = self.rotate_and_store(qkv, view, rotary, keys, values, q_norm, k_norm, eps)
        return self.attend(q, keys, values, view, scale, window).flatten(1)

    def store(self, keys: Tensor, values: Tensor, view: View, key_cache: Tensor, value_cache: Tensor) -> None:
        """Write the rows to the cache; padding rows share row 0, whose content does not matter."""
        attention.store(keys, key_cache, view.rows.write)
        attention.store(values, value_cache, view.rows.write)

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
        """The kernel, or the reference for heads too wide for it."""
        if not attend_triton.supported(keys, values):
            return attention.attend(q, keys, values, attention.look(view.rows), scale, window, softcap, sinks)
        return attend_triton.attend(q, keys, values, view, scale, window, softcap, sinks)
