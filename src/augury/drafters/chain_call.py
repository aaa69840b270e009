"""A chain of an EAGLE-3 head in one call of compiled code, where head and target have the form that it is written for.

That is: packed matrices on a CPU, a vocabulary of the head's own, greedy guesses, one rank. Everything else drafts
step by step, with the same numbers.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from augury.drafters.base import DraftInput
from augury.drafters.confidence import Confidence
from augury.kernels.arrays import NOTHING, Array, array_of, lasting, optional, with_array
from augury.kernels.faces import face
from augury.model.heads.block import BlockLayers, RecurrentHead
from augury.model.heads.eagle3 import Eagle3Head
from augury.model.layers import AnyLinear
from augury.verify.tree import Draft, chain_parents

if TYPE_CHECKING:
    from augury.kernels.fused_layer import FusedLayers
    from augury.kernels.tiles import Tiled

MOST_ROWS = 64  # of a pass; more are a prompt's, which take so long that calls do not count
SHIFT = 1


class ChainCall:
    """Reads what is new and drafts, for one head."""

    def __init__(self, head: Eagle3Head, layers: FusedLayers, words: Tiled, nodes: int, longest: int) -> None:
        parts, like = head.parts, layers.like
        fc, scores = _tiles(parts.fc), _tiles(parts.head)
        assert like is not None and fc is not None and scores is not None
        assert isinstance(head.blocks, BlockLayers)
        self._head, self._blocks, self._layers, self._like, self._nodes = head, head.blocks, layers, like, nodes
        stream_norms = tuple(map(lasting, parts.stream_norms)) or (NOTHING,)  # views: weights may be swapped
        eps = np.float32(head.blocks.eps)
        self._combine = fc.tiles, fc.digits, _bias(parts.fc), stream_norms, eps
        self._words = words.tiles, words.tiles.view(np.float32), words.parts
        self._norms = lasting(parts.token_norm), lasting(parts.hidden_norm), eps
        targets = np.arange(len(scores)) if parts.targets is None else lasting(parts.targets)
        self._scores = scores.tiles, scores.digits, _bias(parts.head), targets
        self._parents = chain_parents(1, nodes)
        self._limits = longest, SHIFT, head.flags.norm_before_residual, head.flags.norm_output

    @classmethod
    def of(cls, head: RecurrentHead, nodes: int, longest: int) -> ChainCall | None:
        """The call for a head, or None where it has another form."""
        if not isinstance(head, Eagle3Head) or not isinstance(head.blocks, BlockLayers):
            return None
        parts, words = head.parts, getattr(head.target, "packed_words", None)
        if words is None or parts.embedding is not None or parts.input_norm is not None or head.target.draft_split:
            return None
        layers: Any = head.blocks.run_layers
        whole = face(head.target.device) == "numba" and getattr(layers, "like", None) is not None
        if not whole or _tiles(parts.fc) is None or _tiles(parts.head) is None:
            return None
        return cls(head, layers, words, nodes, longest)

    def __call__(self, inputs: DraftInput, carried: Tensor, block_ends: Tensor, confidence: Confidence | None) -> Draft:
        """Draft for every group, in the numbers of RecurrentDrafter."""
        from augury.kernels.chain_numba import draft_chains  # compiled code is loaded where it is used
        from augury.kernels.fused_layer import PACE

        count = len(inputs.slots)
        tokens, budget = np.zeros((count, self._nodes), np.int64), np.empty(count, np.int64)
        if confidence is not None:
            confidence.begin(inputs, with_array(budget))
        cache, norms = self._head.cache, self._blocks.norms(self._head.parts.final_norm)
        alone = perf_counter() < PACE.alone_until  # the target's layers have found that threads lose their cores
        ran = draft_chains(
            1 if alone else self._layers.threads,
            _groups(inputs),
            lasting(carried),
            tuple(map(array_of, inputs.features)),
            lasting(block_ends),
            (lasting(inputs.history), lasting(inputs.block_tables)),
            self._combine,
            self._words,
            self._norms,
            self._layers.arrays((cache.keys, cache.values), norms),
            self._scores,
            self._like.shape(inputs.block_size, lasting(cache.keys[0])),
            self._limits,
            _NOT_JUDGED if confidence is None else confidence.arrays(),
            confidence is not None,
            tokens,
            budget,
        )
        if len(self._parents) < count:
            self._parents = chain_parents(count, self._nodes)
        if confidence is None:
            return Draft(with_array(tokens), self._parents[:count], with_array(budget), branching=False)
        confidence.ran = ran
        return Draft(with_array(tokens), self._parents[:count], confidence.finish(at_once=False), branching=False)


def _groups(inputs: DraftInput) -> tuple[Array, ...]:
    """What draft_chains reads of each group; all but `path` are rows of larger tensors, and contiguous."""
    here = inputs.slots, inputs.lengths, inputs.budget, inputs.start, inputs.num_new_tokens, inputs.row_begin
    return *(part.numpy() for part in here), array_of(inputs.path)


def _tiles(linear: AnyLinear | None) -> Tiled | None:
    """The tiles of a packed matrix without adapters."""
    from augury.kernels.tiles import Tiled

    weight = getattr(linear, "weight", None)
    return weight if isinstance(weight, Tiled) else None


def _bias(linear: AnyLinear | None) -> Array:
    return optional(getattr(linear, "bias", None))


_NOT_JUDGED = (
    np.empty(0, np.int64), np.empty((0, 0, 0)), 0.0, np.empty((0, 0), np.int16), np.empty(0), np.empty(0, np.int64),
    np.empty(0), 0.0, (0.0, 0.0),
)  # fmt: skip
