"""The parts of a dense decoder that hold weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from augury.kernels import Ops
from augury.kernels.low_rank import LowRankStack

if TYPE_CHECKING:
    from augury.kernels import AnyPacked
    from augury.model.target import LayerShape


@dataclass(slots=True)
class Linear:
    """A matrix [out, in] and perhaps a bias."""

    ops: Ops
    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to rows [R, in]."""
        return self.ops.linear(x, self.weight, self.bias)


@dataclass(slots=True)
class PackedLinear:
    """A Linear whose matrix stays packed or quantised."""

    ops: Ops
    weight: AnyPacked
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to rows [R, in]."""
        return self.ops.packed_linear(x, self.weight, self.bias)


@dataclass(slots=True)
class AdapterContext:
    """What projections with adapters need to know about the current forward pass."""

    adapters: Tensor | None = None  # int64 [R]: each row's adapter, from 1 up, 0 for none; None: no row has one


@dataclass(slots=True)
class AdaptedLinear:
    """A projection, and what each row's LoRA adapter adds to it."""

    base: AnyLinear
    ops: Ops
    stack: LowRankStack
    current: AdapterContext

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to rows [R, in]."""
        out = self.base(x)
        if self.current.adapters is not None:
            self.ops.add_low_rank(out, x, self.stack, self.current.adapters)
        return out


class OtherLinear(Protocol):
    """A projection that is divided among ranks; see split.py."""

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to rows [R, in]."""
        ...


AnyLinear = Linear | PackedLinear | AdaptedLinear | OtherLinear


@dataclass(slots=True)
class Attention:
    """Fused projections, rotary embedding, paged attention."""

    ops: Ops
    qkv: AnyLinear
    out: AnyLinear
    q_norm: Tensor | None
    k_norm: Tensor | None
    rotary: tuple[Tensor, Tensor]
    scale: float
    window: int  # 0: attends to everything before it
    eps: float

    def __call__(self, x: Tensor, view: Any, keys: Tensor, values: Tensor) -> Tensor:
        """Attend for rows x; their keys and values are written to the cache before any row reads it."""
        seen = self.ops.rotate_store_attend(
            self.qkv(x), view, self.rotary, keys, values, self.scale, self.window, self.q_norm, self.k_norm, self.eps
        )
        return self.out(seen)

    def read(self, x: Tensor, view: Any, keys: Tensor, values: Tensor) -> None:
        """Write the keys and values of rows x to the cache, and do nothing else."""
        self.ops.rotate_and_store(self.qkv(x), view, self.rotary, keys, values, self.q_norm, self.k_norm, self.eps)

    def without_queries(self, shape: LayerShape) -> Attention:
        """One that can only `read`, with a projection to keys and values alone where that is a part of the matrix."""
        if not isinstance(self.qkv, Linear):
            return self
        first = len(self.qkv.weight) - shape.kv_heads * (shape.key_dim + shape.value_dim)
        bias = None if self.qkv.bias is None else self.qkv.bias[first:]
        return replace(self, qkv=replace(self.qkv, weight=self.qkv.weight[first:], bias=bias))


@dataclass(slots=True)
class GatedMLP:
    """silu(gate) * up, then down."""

    ops: Ops
    gate_up: AnyLinear
    down: AnyLinear

    def __call__(self, x: Tensor) -> Tensor:
        """Run the rows."""
        return self.down(self.ops.silu_mul(self.gate_up(x)))


@dataclass(slots=True)
class Mixture:
    """A mixture of experts: gated MLPs, of which a router chooses some for each row."""

    ops: Ops
    router: Linear  # [E, H]
    gate_up: Tensor  # [E, 2 * I, H]
    down: Tensor  # [E, H, I]
    count: int  # experts that run a row
    normalise: bool  # their shares add up to 1

    def __call__(self, x: Tensor) -> Tensor:
        """Run the rows."""
        shares, experts = self.ops.route(self.router(x), self.count, self.normalise)
        return self.ops.run_experts(x, self.gate_up, self.down, experts, shares)


@dataclass(slots=True)
class Layer:
    """One decoder layer; the norm after it belongs to the next layer."""

    attention_norm: Tensor
    attention: Attention
    mlp_norm: Tensor
    mlp: GatedMLP | Mixture

    def __call__(
        self, x: Tensor, residual: Tensor, view: Any, keys: Tensor, values: Tensor, norm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """From the layer's normed input and the residual stream to the next layer's, which `norm` belongs to."""
        ops, eps = self.attention.ops, self.attention.eps
        x, residual = ops.add_rms_norm(self.attention(x, view, keys, values), residual, self.mlp_norm, eps)
        return ops.add_rms_norm(self.mlp(x), residual, norm, eps)
