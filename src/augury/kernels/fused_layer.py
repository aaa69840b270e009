"""Decoder layers of packed matrices, ready for one call of compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.kernels.arrays import Array, array_of, lasting, optional, with_array
from augury.kernels.layer_numba import CACHE, COLUMNS, NORMS, run_layers
from augury.kernels.pace import ThreadTimings, kind_of
from augury.kernels.tiles import Tiled
from augury.kernels.unpack import BLOCK

if TYPE_CHECKING:
    from torch import Tensor

    from augury.model.layers import Layer


NOBODY = np.empty(0, np.int64)
PACE = ThreadTimings()  # of all layers: a process has one pool of threads
NO_STACK = (np.empty((0, 0, 0), np.float32), np.empty((0, 0, 0), np.float32), np.empty(0, np.int64))


@dataclass(slots=True)
class PassArrays:
    """A pass as numpy arrays."""

    positions: Array
    write: Array
    rows: tuple[Array, ...]  # positions, slots, context, base, ancestors, block_tables, and `first` alone
    block_size: int
    keys: int  # cache rows seen by all rows together, about
    adapters: Array  # each row's adapter; empty: no adapters


@dataclass(slots=True)
class FusedLayer:
    """See Layer; its arrays and numbers in the groups that run_layers takes them in."""

    matrices: tuple[Array, ...]  # qkv, out, gate and up, down: tiles and bias of each
    norms: tuple[Array, Array, Array]  # of the MLP, of queries and keys
    digits: tuple[int, ...]
    rotary: tuple[Array, Array]
    stacks: tuple[Array, ...]  # the adapters of each matrix: both factors, and bounds
    numbers: tuple[float, int, float]  # scale and window of the attention, epsilon of the norms

    @classmethod
    def of(cls, layer: Layer) -> FusedLayer | None:
        """The layer, or nothing where a matrix has another form: each mixture of forms would be compiled anew."""
        attention, mlp = layer.attention, layer.mlp
        linears = (attention.qkv, attention.out, mlp.gate_up, mlp.down)
        matrices = [_tiled(linear) for linear in linears]
        first = matrices[0]
        if first is None or any(m is None or m.tiles.dtype != first.tiles.dtype for m in matrices):
            return None
        return cls(
            tuple(part for m, by in zip(matrices, linears, strict=True) if m for part in (m.tiles, _bias(by))),
            (lasting(layer.mlp_norm), optional(attention.q_norm), optional(attention.k_norm)),
            first.digits,
            (lasting(attention.rotary[0]), lasting(attention.rotary[1])),
            tuple(part for linear in linears for part in _stack(linear)),
            (attention.scale, attention.window, attention.eps),
        )

    @property
    def bytes(self) -> int:
        """Of its matrices."""
        return sum(array.nbytes for array in self.matrices[::2])

    def alike(self, other: object) -> bool:
        """Whether the other may run in one call with this one."""
        return isinstance(other, FusedLayer) and self._form() == other._form()

    def _form(self) -> tuple[object, ...]:
        arrays = (*self.matrices, *self.norms, *self.stacks, *self.rotary)
        return *((array.shape, array.dtype) for array in arrays), self.digits, self.numbers

    def places(self) -> list[int]:
        """Its line of the table, but for what comes with a pass: the norm after it, and its keys and values."""
        mlp_norm, q_norm, k_norm = self.norms
        arrays = (*self.matrices, mlp_norm, mlp_norm, q_norm, k_norm, *self.stacks, *self.rotary)
        return [*(array.ctypes.data for array in arrays), 0, 0]


class FusedLayers:
    """Layers of which those that are alike run together; see LayersRun."""

    def __init__(self, layers: Sequence[Layer], threads: int) -> None:
        self.threads = threads
        self.layers = [FusedLayer.of(layer) or layer for layer in layers]
        self._table = np.zeros((len(layers), COLUMNS), np.int64)
        self._end = list(range(1, len(layers) + 1))  # where those that are like a layer end
        for n in reversed(range(len(layers))):
            layer = self.layers[n]
            if isinstance(layer, FusedLayer):
                self._table[n] = layer.places()
                if n + 1 < len(layers) and layer.alike(self.layers[n + 1]):
                    self._end[n] = self._end[n + 1]

    def __call__(
        self,
        span: range,
        x: Tensor,
        residual: Tensor,
        view: PassArrays,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        norms: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Run the layers of a span."""
        n = span.start
        while n < span.stop:
            layer = self.layers[n]
            if not isinstance(layer, FusedLayer):
                x, residual = layer(x, residual, view, keys[n], values[n], norms[n])
                n += 1
                continue
            end = min(self._end[n], span.stop)
            self._table[n:end, NORMS + 1] = [norm.data_ptr() for norm in norms[n:end]]
            self._table[n:end, CACHE] = [store.data_ptr() for store in keys[n:end]]
            self._table[n:end, CACHE + 1] = [store.data_ptr() for store in values[n:end]]
            first = layer, lasting(norms[n]), (lasting(keys[n]), lasting(values[n]))
            while n < end:
                x, residual, n = self._timed(n, end, x, residual, view, *first)
        return x, residual

    def _timed(self, n: int, end: int, x: Tensor, residual: Tensor, view: PassArrays, *first: Any) -> Any:
        """Run as many layers as may run before somebody looks at the clock; and the layer after them."""
        if self.threads == 1:
            return *self.run(1, n, end, x, residual, view, *first), end
        kind, rows = kind_of(len(view.write), view.keys, first[0].bytes), len(view.write)
        threads, count = PACE.begin(kind, rows, self.threads, end - n, begun := perf_counter())
        found = self.run(threads, n, n + count, x, residual, view, *first)
        PACE.took(kind, rows, threads, count, (ended := perf_counter()) - begun, ended)
        return *found, n + count

    def run(
        self,
        threads: int,
        n: int,
        end: int,
        x: Tensor,
        residual: Tensor,
        view: PassArrays,
        like: FusedLayer,
        norm: Array,
        cache: tuple[Array, Array],
    ) -> tuple[Tensor, Tensor]:
        """One call of compiled code."""
        scale, window, eps = like.numbers
        heads = int(like.matrices[2].shape[1]) * BLOCK // cache[0].shape[2]
        following, stream = run_layers(
            threads,
            array_of(x),
            array_of(residual),
            self._table[n:end],
            like.matrices,
            (like.norms[0], norm, *like.norms[1:]),
            like.digits,
            view.adapters,
            like.stacks,
            like.rotary,
            cache,
            view.rows,
            view.write,
            (view.block_size, heads, scale, window, eps),
        )
        return with_array(following), with_array(stream)


def _tiled(linear: object) -> Tiled | None:
    """The tiles of a projection; the matrices of a mixture's experts are none."""
    weight = getattr(getattr(linear, "base", linear), "weight", None)  # one with adapters lies around another
    return weight if isinstance(weight, Tiled) else None


def _bias(linear: object) -> Array:
    return optional(getattr(getattr(linear, "base", linear), "bias", None))


def _stack(linear: object) -> tuple[Array, Array, Array]:
    stack = getattr(linear, "stack", None)
    return NO_STACK if stack is None else (lasting(stack.down), lasting(stack.up), lasting(stack.bounds))
