"""The operations of a model: one definition, several implementations (faces), chosen once by device.

`TorchOps` runs anywhere and defines what each operation means; `NumbaOps` is the fast face on a CPU, `TritonOps` on a
GPU. All treat rows (one token of a forward pass each) independently. The numba face also gives a row the same bits
whatever other rows share the pass.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from augury.kernels.faces import face

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from augury.kernels.low_rank import LowRankStack
    from augury.kernels.quantized import Quantized
    from augury.kernels.rows import Rows
    from augury.kernels.tiles import Tiled
    from augury.kernels.unpack import Packed
    from augury.model.layers import Layer

    AnyPacked = Packed | Tiled | Quantized


class LayersRun(Protocol):
    """Runs the layers of a model or a draft head in order."""

    def __call__(
        self,
        x: Tensor,
        residual: Tensor,
        view: Any,
        stores: tuple[Sequence[Tensor], Sequence[Tensor]],
        norms: Sequence[Tensor],
        kept: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Take the first layer's normed input and the residual stream; return those after the last layer.

        `stores` are the key and the value caches of all layers, `norms` the weights of the norm after each. The
        residual streams after as many layers as `kept` lists are returned as well.
        """
        ...


class Ops(Protocol):
    """What every face offers; R is the number of rows."""

    def view(self, rows: Rows) -> Any:
        """The rows in this face's own form; made once per forward pass and used by every layer."""
        ...

    def pick(self, x: Tensor, rows: Tensor) -> Tensor:
        """The given rows of x [R, in]: [len(rows), in]."""
        ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [R, in] times weight [out, in], plus bias."""
        ...

    def arrange(self, weight: Packed, fast: bool) -> AnyPacked:
        """A packed matrix in the layout that packed_linear reads best; `fast` lets it round activations to 8 bits."""
        ...

    def packed_linear(self, x: Tensor, weight: AnyPacked, bias: Tensor | None = None) -> Tensor:
        """`linear` with a packed matrix that `arrange` returned, or with a quantised one."""
        ...

    def fused(self, layers: Sequence[Layer]) -> LayersRun:
        """A callable that runs a model's layers in the way that suits this face best."""
        ...

    def add_low_rank(self, out: Tensor, x: Tensor, stack: LowRankStack, adapters: Tensor) -> None:
        """Add to each row of out [R, out] the product of its adapter with its row of x [R, in]; see low_rank.py."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [R, D] over its root mean square, times weight."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The norm of x + residual, and x + residual; x is overwritten, the old residual stays unchanged."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu of the first half of each row, times the second half."""
        ...

    def route(self, logits: Tensor, count: int, normalise: bool) -> tuple[Tensor, Tensor]:
        """The `count` most likely experts of each row, most likely first: shares float32 [R, count], experts int64.

        Shares are probabilities from a softmax over all of logits [R, E] or, if `normalise`, over the chosen ones.
        """
        ...

    def run_experts(self, x: Tensor, gate_up: Tensor, down: Tensor, experts: Tensor, shares: Tensor) -> Tensor:
        """The outputs of each row's experts for x [R, H], each times its share, added up in route's order.

        gate_up is [E, 2 * I, H] and down [E, H, I]; experts and shares are route's.
        """
        ...

    def rotate_and_store(
        self,
        qkv: Tensor,
        view: Any,
        rotary: tuple[Tensor, Tensor],
        keys: Tensor,
        values: Tensor,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> Tensor:
        """Normalise and rotate queries and keys, write keys and values to the layer's cache, return queries [R, H, D].

        qkv is [R, (H + 2 * KVH) * D] and is overwritten; rotary is (cos, sin), each float32 [positions, rotated / 2]; a
        head dimension past the rotated ones passes through.
        """
        ...

    def rotate_store_attend(
        self,
        qkv: Tensor,
        view: Any,
        rotary: tuple[Tensor, Tensor],
        keys: Tensor,
        values: Tensor,
        scale: float,
        window: int = 0,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> Tensor:
        """rotate_and_store, then attend, [R, H * D]: all of a layer between its two projections."""
        ...

    def store(self, keys: Tensor, values: Tensor, view: Any, key_cache: Tensor, value_cache: Tensor) -> None:
        """Write keys [R, KVH, Dk] and values [R, KVH, Dv] to the layer's cache."""
        ...

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        view: Any,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention of q [R, H, Dk] over the cache rows each row sees: [R, H, Dv]; a row that sees nothing gives zeros.

        A key is visible if row position - key position < window (0: no window), or, where that is negative, if both
        lie in the same chunk of -window positions; softcap c bends scores to c * tanh(score / c) (0: none); sinks [H]
        are scores of a key that has no value.
        """
        ...


def choose(device: torch.device, exact: bool = False) -> Ops:
    """The face for a device; `exact`: results do not depend on which rows share a pass (on a CPU they never do)."""
    kind = face(device)
    return _face_of("exact triton" if exact and kind == "triton" else kind)


@cache  # not on choose: a cache holds choose(device) and choose(device, False) apart, and a kind has one face
def _face_of(kind: str) -> Ops:
    if kind == "numba":
        from augury.kernels.numba_ops import NumbaOps

        return NumbaOps()
    if kind == "exact triton":
        from augury.kernels.exact_triton_ops import ExactTritonOps

        return ExactTritonOps()
    if kind == "triton":
        from augury.kernels.triton_ops import TritonOps

        return TritonOps()
    from augury.kernels.torch_ops import TorchOps

    return TorchOps()
