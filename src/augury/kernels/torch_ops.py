"""The torch face: runs on any device, inside CUDA graphs too, and defines each operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from augury.kernels import attention, experts, fused, low_rank
from augury.kernels.step_by_step import StepByStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.kernels import AnyPacked
    from augury.kernels.rows import Rows
    from augury.kernels.unpack import Packed
    from augury.model.layers import Layer


class TorchOps:
    """See Ops."""

    def view(self, rows: Rows) -> attention.VisibleKeys:
        """Resolve what every row sees."""
        return attention.look(rows)

    linear = staticmethod(fused.linear)
    add_low_rank = staticmethod(low_rank.add_low_rank)
    rms_norm = staticmethod(fused.rms_norm)
    silu_mul = staticmethod(fused.silu_mul)
    route = staticmethod(experts.route)
    run_experts = staticmethod(experts.run_experts)
    attend = staticmethod(attention.attend)

    def pick(self, x: Tensor, rows: Tensor) -> Tensor:
        """Index the rows."""
        return x[rows]

    def fused(self, layers: Sequence[Layer]) -> StepByStep:
        """Nothing is fused here."""
        return StepByStep(layers)

    def arrange(self, weight: Packed, fast: bool) -> Packed:
        """The matrix unchanged: nothing here is faster for being rounded."""
        return weight

    def packed_linear(self, x: Tensor, weight: AnyPacked, bias: Tensor | None = None) -> Tensor:
        """Unpack, then multiply."""
        return fused.linear(x, weight.unpacked(), bias)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Add, then norm."""
        residual = residual + x
        return fused.rms_norm(residual, weight, eps), residual

    def rotate_and_store(
        self,
        qkv: Tensor,
        view: attention.VisibleKeys,
        rotary: tuple[Tensor, Tensor],
        keys: Tensor,
        values: Tensor,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> Tensor:
        """Split, norm, rotate, store."""
        _, kv_heads, dim = keys.shape
        heads = qkv.shape[1] // dim
        q, k, v = qkv.view(-1, heads, dim).split((heads - 2 * kv_heads, kv_heads, kv_heads), dim=1)
        if q_norm is not None:
            q = fused.rms_norm(q, q_norm, eps)
        if k_norm is not None:
            k = fused.rms_norm(k, k_norm, eps)
        cos, sin = (table[view.rows.positions] for table in rotary)
        self.store(fused.rotate(k, cos, sin), v, view, keys, values)
        return fused.rotate(q, cos, sin)

    def rotate_store_attend(
        self,
        qkv: Tensor,
        view: attention.VisibleKeys,
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
        return attention.attend(q, keys, values, view, scale, window).flatten(1)

    def store(
        self, keys: Tensor, values: Tensor, view: attention.VisibleKeys, key_cache: Tensor, value_cache: Tensor
    ) -> None:
        """Write the rows to the cache; padding rows share row 0, whose content does not matter."""
        attention.store(keys, key_cache, view.rows.write)
        attention.store(values, value_cache, view.rows.write)
