"""A decoder layer of packed matrices, ready for one call of compiled code."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from augury.kernels.arrays import Array, array_of, lasting, optional, with_array
from augury.kernels.layer_numba import run_layer
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
    """See Layer; its arrays and numbers in the groups that run_layer takes them in."""

    threads: int
    matrices: tuple[Array, ...]  # qkv, out, gate and up, down: tiles and bias of each
    norms: tuple[Array, Array, Array]  # of the MLP, of queries and keys
    digits: tuple[int, ...]
    rotary: tuple[Array, Array]
    stacks: tuple[Array, ...]  # the adapters of each matrix: both factors, and bounds
    numbers: tuple[float, int, float]  # scale and window of the attention, epsilon of the norms
    bytes: int  # of its matrices

    @classmethod
    def of(cls, layer: Layer, threads: int) -> FusedLayer | None:
        """The layer, or nothing where a matrix has another form: each mixture of forms would be compiled anew."""
        attention, mlp = layer.attention, layer.mlp
        linears = (attention.qkv, attention.out, mlp.gate_up, mlp.down)
        matrices = [_tiled(linear) for linear in linears]
        first = matrices[0]
        if first is None or any(m is None or m.tiles.dtype != first.tiles.dtype for m in matrices):
            return None
        return cls(
            threads,
            tuple(part for m, by in zip(matrices, linears, strict=True) if m for part in (m.tiles, _bias(by))),
            (lasting(layer.mlp_norm), optional(attention.q_norm), optional(attention.k_norm)),
            first.digits,
            (lasting(attention.rotary[0]), lasting(attention.rotary[1])),
            tuple(part for linear in linears for part in _stack(linear)),
            (attention.scale, attention.window, attention.eps),
            sum(m.tiles.nbytes for m in matrices if m),
        )

    def __call__(
        self, x: Tensor, residual: Tensor, view: PassArrays, keys: Tensor, values: Tensor, norm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See Layer.__call__."""
        if self.threads == 1:
            return self._run(1, x, residual, view, keys, values, norm)
        kind = kind_of(rows := len(view.write), view.keys, self.bytes)
        threads = PACE.threads(kind, self.threads, begun := perf_counter())
        found = self._run(threads, x, residual, view, keys, values, norm)
        PACE.took(kind, rows, threads, (ended := perf_counter()) - begun, ended)
        return found

    def _run(
        self, threads: int, x: Tensor, residual: Tensor, view: PassArrays, keys: Tensor, values: Tensor, norm: Tensor
    ) -> tuple[Tensor, Tensor]:
        cache, (scale, window, eps) = (lasting(keys), lasting(values)), self.numbers
        heads = int(self.matrices[2].shape[1]) * BLOCK // keys.shape[2]
        following, stream = run_layer(
            threads,
            array_of(x),
            array_of(residual),
            self.matrices,
            (self.norms[0], lasting(norm), *self.norms[1:]),
            self.digits,
            view.adapters,
            self.stacks,
            self.rotary,
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
