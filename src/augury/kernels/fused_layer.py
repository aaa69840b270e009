"""Decoder layers of packed matrices, ready for one call of compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

import numpy as np

from augury.kernels.arrays import Array, array_of, lasting, optional, with_array
from augury.kernels.layer_numba import CACHE, COLUMNS, KEPT, NORMS, run_layers
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
    """The rows of a forward pass as numpy arrays."""

    positions: Array
    write: Array
    rows: tuple[Array, ...]  # positions, slots, context, base, ancestors, block_tables, and `first` as an array of one
    block_size: int
    keys: int  # cache rows seen by all rows together, about
    adapters: Array  # each row's adapter; empty: no adapters


@dataclass(slots=True)
class FusedLayer:
    """The arrays and numbers of a Layer, grouped as run_layers takes them."""

    matrices: tuple[Array, ...]  # qkv, out, gate and up, down: tiles and bias of each
    norms: tuple[Array, Array, Array]  # of the MLP, of queries and keys
    digits: tuple[int, ...]
    rotary: tuple[Array, Array]
    stacks: tuple[Array, ...]  # the adapters of each matrix: both factors, and bounds
    numbers: tuple[float, int, float]  # scale and window of the attention, epsilon of the norms

    @classmethod
    def of(cls, layer: Layer) -> FusedLayer | None:
        """The layer, or None if its matrices are not all tiles of one kind: each mixture would be compiled anew."""
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
        """Bytes of its matrices."""
        return sum(array.nbytes for array in self.matrices[::2])

    def alike(self, other: object) -> bool:
        """Whether the other layer can run in one call with this one: same shapes, types and numbers."""
        return isinstance(other, FusedLayer) and self._form() == other._form()

    def _form(self) -> tuple[object, ...]:
        arrays = (*self.matrices, *self.norms, *self.stacks, *self.rotary)
        return *((array.shape, array.dtype) for array in arrays), self.digits, self.numbers

    def shape(self, block_size: int, keys: Array) -> tuple[int, int, float, int, float]:
        """Block size and heads, then scale, window and epsilon, as run_layers takes them."""
        return block_size, int(self.matrices[2].shape[1]) * BLOCK // keys.shape[2], *self.numbers

    def places(self) -> list[int]:
        """Its row of the table of addresses; those of the norm after it and of its keys and values come with a pass."""
        mlp_norm, q_norm, k_norm = self.norms
        arrays = (*self.matrices, mlp_norm, mlp_norm, q_norm, k_norm, *self.stacks, *self.rotary)
        return [*(array.ctypes.data for array in arrays), 0, 0, -1]


class FirstLayer(NamedTuple):
    """The first layer of a call, which stands for all of them: their arrays have the same shapes."""

    layer: FusedLayer
    norm: Array
    cache: tuple[Array, Array]


class FusedLayers:
    """Runs consecutive layers that are alike in one call; see LayersRun."""

    def __init__(self, layers: Sequence[Layer], threads: int) -> None:
        self.threads = threads
        self.layers = [FusedLayer.of(layer) or layer for layer in layers]
        self._table = np.zeros((len(layers), COLUMNS), np.int64)
        self._marks: list[ref[Tensor]] = []  # tensors whose addresses the table has; it must not keep a cache alive
        self._kept: Sequence[int] | None = None
        self._end = list(range(1, len(layers) + 1))  # one past the last of the layers that are like each
        for n in reversed(range(len(layers))):
            layer = self.layers[n]
            if isinstance(layer, FusedLayer):
                self._table[n] = layer.places()
                if n + 1 < len(layers) and layer.alike(self.layers[n + 1]):
                    self._end[n] = self._end[n + 1]

    def __call__(
        self,
        x: Tensor,
        residual: Tensor,
        view: PassArrays,
        stores: tuple[Sequence[Tensor], Sequence[Tensor]],
        norms: Sequence[Tensor],
        kept: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Run all layers; see LayersRun."""
        n, (keys, values) = 0, stores
        streams = np.empty((len(kept), *residual.shape), np.float32)
        self._note_places(keys, values, norms, kept)
        while n < len(self.layers):
            layer = self.layers[n]
            if isinstance(layer, FusedLayer):
                first, end = FirstLayer(layer, lasting(norms[n]), (lasting(keys[n]), lasting(values[n]))), self._end[n]
                while n < end:
                    x, residual, n = self._timed(n, end, x, residual, view, first, streams)
            else:
                x, residual = layer(x, residual, view, keys[n], values[n], norms[n])
                n += 1
                if n in kept:
                    streams[kept.index(n)] = array_of(residual)
        return x, residual, [with_array(stream) for stream in streams]

    def _note_places(
        self, keys: Sequence[Tensor], values: Sequence[Tensor], norms: Sequence[Tensor], kept: Sequence[int]
    ) -> None:
        """Fill in the addresses that come with a pass; mostly they are those of the pass before."""
        marks = (*keys[:1], *values[:1], *norms[:1], *norms[-1:])
        if self._kept == kept and all(known() is mark for known, mark in zip(self._marks, marks, strict=True)):
            return
        self._marks, self._kept = [ref(mark) for mark in marks], kept
        self._table[:, NORMS + 1] = [norm.data_ptr() for norm in norms]
        self._table[:, CACHE] = [store.data_ptr() for store in keys]
        self._table[:, CACHE + 1] = [store.data_ptr() for store in values]
        self._table[:, KEPT] = -1
        for number, layers in enumerate(kept):
            self._table[layers - 1, KEPT] = number

    def _timed(
        self, n: int, end: int, x: Tensor, residual: Tensor, view: PassArrays, first: FirstLayer, streams: Array
    ) -> tuple[Tensor, Tensor, int]:
        """Run as many layers as one timed call may take; returns their outputs and the number of the next layer."""
        if self.threads == 1:
            return *self.run(1, n, end, x, residual, view, first, streams), end
        kind, rows = kind_of(len(view.write), view.keys, first.layer.bytes), len(view.write)
        threads, count = PACE.begin(kind, rows, self.threads, end - n, begun := perf_counter())
        found = self.run(threads, n, n + count, x, residual, view, first, streams)
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
        first: FirstLayer,
        streams: Array,
    ) -> tuple[Tensor, Tensor]:
        """Run layers n .. end-1 in one call of compiled code."""
        like, cache = first.layer, first.cache
        following, stream = run_layers(
            threads,
            array_of(x),
            array_of(residual),
            self._table[n:end],
            like.matrices,
            (like.norms[0], first.norm, *like.norms[1:]),
            like.digits,
            view.adapters,
            like.stacks,
            like.rotary,
            cache,
            view.rows,
            view.write,
            like.shape(view.block_size, cache[0]),
            streams,
        )
        return with_array(following), with_array(stream)

    @property
    def like(self) -> FusedLayer | None:
        """The first layer if one call can run all layers, else None."""
        first = self.layers[0] if self._end[:1] == [len(self.layers)] else None
        return first if isinstance(first, FusedLayer) else None

    def arrays(
        self, stores: tuple[Sequence[Tensor], Sequence[Tensor]], norms: Sequence[Tensor]
    ) -> tuple[Array | tuple[Array, ...] | tuple[int, ...], ...]:
        """What run_layers takes for all layers, for compiled code that calls it; only where `like` is not None."""
        (keys, values), like = stores, self.like
        assert like is not None
        self._note_places(keys, values, norms, ())
        layer_norms = like.norms[0], lasting(norms[0]), *like.norms[1:]
        cache = lasting(keys[0]), lasting(values[0])
        return self._table, like.matrices, layer_norms, like.digits, like.stacks, like.rotary, cache


def _tiled(linear: object) -> Tiled | None:
    """The tiles of a projection, or None if it has none, as in a mixture of experts."""
    weight = getattr(getattr(linear, "base", linear), "weight", None)  # a projection with adapters wraps another
    return weight if isinstance(weight, Tiled) else None


def _bias(linear: object) -> Array:
    return optional(getattr(getattr(linear, "base", linear), "bias", None))


def _stack(linear: object) -> tuple[Array, Array, Array]:
    stack = getattr(linear, "stack", None)
    return NO_STACK if stack is None else (lasting(stack.down), lasting(stack.up), lasting(stack.bounds))
