"""What every MLP speculator is made of: its sizes, its norms, and the interface that drafters use."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from augury.kernels import Ops
from augury.model.errors import ModelError
from augury.model.heads.files import Weights
from augury.model.target import Target

EPS = 1e-6

State = tuple[Tensor, ...]  # each [R, ...]: rows may be picked and repeated


class RecurrentSpeculator(Protocol):
    """The interface of a recurrent speculator."""

    def begin(self, hidden: Tensor) -> State:
        """The state before any guess, from normed hidden states [R, H]."""
        ...

    def step(self, i: int, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        """Logits float32 [R, vocabulary] of the token after `tokens` [R], guess number i, and the next state."""
        ...


class MLPSizes(NamedTuple):
    """What a speculator's config.json says, checked against the target."""

    hidden: int  # width of the states it reads
    inner: int  # width of its own
    steps: int  # guesses it was trained to make
    vocabulary: int
    tied: bool  # one set of weights for all guesses, but for the first projection
    scaled: bool  # the target's states are normed first
    words: int  # tokens it guesses among; fewer than the vocabulary if it has a d2t

    @property
    def token_weight(self) -> float:
        """The weight of a token's embedding relative to the state, whose power halves over all guesses."""
        state: float = 0.5 ** (0.5 / self.steps)
        return math.sqrt((1 - state**2) * self.inner / 2) / state


class Norm(NamedTuple):
    """Division by the root mean square, then scale and shift; nothing is centred."""

    ops: Ops
    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to rows."""
        return self.ops.rms_norm(x, self.weight, EPS) + self.bias


class InputNorm:
    """The target's states as a speculator reads them: as they are, or with half the power of a normed vector."""

    def __init__(self, target: Target, sizes: MLPSizes, ops: Ops) -> None:
        scale = torch.full((sizes.hidden,), 2**-0.5, device=target.device, dtype=target.cache_dtype)
        self._ops, self._scale = ops, scale if sizes.scaled else None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Apply it to rows."""
        return hidden if self._scale is None else self._ops.rms_norm(hidden, self._scale, EPS)


def read_norm(weights: Weights, name: str, size: int) -> Norm:
    """Scale and shift of one norm."""
    return Norm(weights.ops, weights.vector(f"{name}.weight", size), weights.vector(f"{name}.bias", size))


def width_of(directory: Path, raw: dict[str, Any], key: str, default: int | None = None) -> int:
    """A width, which Arctic writes as a text of one or more numbers with dots between them; 0 stands for emb_dim."""
    value = raw.get(key, default)
    text = str(value)
    if isinstance(value, bool) or not text.isdigit():
        several = " (networks of several layers are not supported)" if "." in text else ""
        raise ModelError(f"{directory / 'config.json'}: {key}={value!r} must be a whole number{several}.")
    return int(text)
