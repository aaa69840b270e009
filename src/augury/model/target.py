"""The interface between the engine and a model: rows in, logits and residual streams out.

A pass is a packed list of token rows. A row belongs to a slot (a running request), sees the first `context` cache rows
of that slot, and, if it is a node of a draft tree, also the cache rows of its own ancestors, named by the bits of one
integer. A prompt chunk is rows whose context grows by one; a draft chain is a tree with one child per node; plain
decoding is a single row. The model knows nothing of requests, sampling or speculation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from augury.kernels.rows import Rows
from augury.model.memory import lasting_zeros
from augury.model.states import States, StateShape

if TYPE_CHECKING:
    from augury.model.layers import Layer
    from augury.model.split import Split

NORMED = -1  # the feature id of the hidden state after the final norm


@dataclass(slots=True)
class TargetOutput:
    """The result of a forward pass."""

    logits: Tensor  # [L, vocabulary], in the type the head computes in: a float32 copy would cost more than it adds
    features: tuple[Tensor, ...] = ()  # one [R, hidden] stream for each feature id asked for, in that order


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps in the cache for a token; keys and values may differ (MLA)."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(slots=True)
class KVCache:
    """Keys and values of every layer, indexed by physical row; block 0 is the null block that padding writes to."""

    keys: list[Tensor] = field(default_factory=list)  # each [blocks * block_size, kv_heads, key_dim]
    values: list[Tensor] = field(default_factory=list)
    pools: tuple[Tensor, Tensor] | None = None  # all layers' in one tensor, [layers, rows, width], if shapes agree
    states: States | None = None  # of recurrent layers, where a model has any

    @classmethod
    def allocate(cls, shapes: list[LayerShape], rows: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        """Reserve `rows` physical rows for every layer."""

        def make(shape: LayerShape, dim: int, *layers: int) -> Tensor:
            return lasting_zeros(*layers, rows, shape.kv_heads, dim, dtype=dtype, device=device)

        if device.type == "cpu" or len(set(shapes)) != 1:
            return cls([make(s, s.key_dim) for s in shapes], [make(s, s.value_dim) for s in shapes])
        keys, values = (make(shapes[0], dim, len(shapes)) for dim in (shapes[0].key_dim, shapes[0].value_dim))
        return cls(list(keys), list(values), (keys.flatten(2), values.flatten(2)))

    @property
    def stores(self) -> list[Tensor]:
        """All key and value tensors, each indexed by physical row."""
        return [*self.keys, *self.values]

    def move(self, source: Tensor, destination: Tensor) -> None:
        """Copy physical rows onto others in every layer: the accepted path of a tree moves into place."""
        for store in (*self.keys, *self.values):
            store[destination] = store[source]


def bytes_per_token(shapes: list[LayerShape], dtype: torch.dtype) -> int:
    """Cache bytes that one token takes over all layers."""
    return sum(s.kv_heads * (s.key_dim + s.value_dim) for s in shapes) * dtype.itemsize


class Target(Protocol):
    """A model that scores rows. Implemented by dense.Dense and adapter.Adapter."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_position: int  # the longest context the checkpoint was made for
    switch_length: int  # a sequence that grows past this must be prefilled anew: all its keys change; 0: none does
    device: torch.device
    cache_dtype: torch.dtype
    layer_shapes: list[LayerShape]  # of the layers that attend
    state_shapes: list[StateShape]  # of the layers that keep a recurrent state
    capturable: bool  # whether forward may be captured as a CUDA graph
    any_size: bool  # whether a pass of a new size costs no more than others, so that none need be padded
    cache: KVCache  # assigned by the engine once it knows how many blocks it can afford
    split: Split | None  # how it is divided among ranks; None: it is whole
    layers: list[Layer]  # our own decoder's; empty for a model that runs through transformers
    draft_split: Split | None  # how its drafters are divided among ranks; None: every rank has the whole of them

    @property
    def words(self) -> tuple[int, int] | None:
        """This rank's tokens, first and one past the last, where the vocabulary is divided among ranks; else None."""
        ...

    def forward(self, rows: Rows, features: tuple[int, ...] = ()) -> TargetOutput:
        """Score the wanted rows; feature id j is the residual stream after j layers (0: embeddings, n: before the
        final norm), NORMED the hidden state after the final norm."""
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """The embeddings of tokens int64 [R], [R, hidden] in the cache's type: drafters share them."""
        ...

    def project(self, hidden: Tensor) -> Tensor:
        """Logits [R, vocabulary] of normed hidden states [R, hidden]: drafters share the head."""
        ...
