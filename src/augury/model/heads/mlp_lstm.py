"""Arctic's speculator with gates: an LSTM cell whose one set of weights makes every guess."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from augury.model.errors import ModelError
from augury.model.heads.files import Weights
from augury.model.heads.mlp_parts import InputNorm, MLPSizes, Norm, State, read_norm, width_of
from augury.model.layers import Linear
from augury.model.target import Target

GATES = ("forget", "input", "output", "cell")  # in the order in which fused projections stack them


class LstmWeights(NamedTuple):
    """The weights; tied embeddings are one table for all gates."""

    embeddings: list[Tensor]  # one, or one per gate
    first: Linear  # from the target's state to four gates
    later: Linear  # from its own state
    cell_norm: Norm
    state_norm: Norm
    head: Linear


class LSTMSpeculator:
    """A RecurrentSpeculator: its state is its output and its memory."""

    def __init__(self, target: Target, sizes: MLPSizes, cell: LstmWeights) -> None:
        self.sizes, self.cell = sizes, cell
        self.first = InputNorm(target, sizes, cell.head.ops)

    @torch.no_grad()
    def begin(self, hidden: Tensor) -> State:
        """See RecurrentSpeculator.begin."""
        return self.first(hidden), hidden.new_zeros(len(hidden), self.sizes.inner)

    @torch.no_grad()
    def step(self, i: int, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        """See RecurrentSpeculator.step."""
        shown, memory = state
        cell, width = self.cell, self.sizes.inner
        x = (cell.later if i else cell.first)(shown)
        words = torch.cat([F.embedding(tokens, table) for table in cell.embeddings], dim=1).to(x.dtype)
        words = words if len(cell.embeddings) > 1 else words.repeat(1, len(GATES))
        x = torch.add(x, words, alpha=self.sizes.token_weight)
        forget, take, show = torch.sigmoid(x[:, : 3 * width]).split(width, dim=1)
        memory = memory * forget + F.gelu(cell.cell_norm(x[:, 3 * width :].contiguous())) * take
        shown = F.gelu(cell.state_norm(memory)) * show
        return cell.head(shown).float(), (shown, memory)


def load_lstm(
    weights: Weights, raw: dict[str, Any], tensors: dict[str, Tensor], target: Target, sizes: MLPSizes
) -> LSTMSpeculator:
    """Read fused (`projs`) or separate (`forget_proj`, ...) projections; repeated tied tensors may be left out."""
    directory = weights.directory
    if not sizes.tied:
        raise ModelError(f"{directory}: method sum_lstm exists with tie_weights only; its config says otherwise.")
    inner = sizes.inner
    for key in ("emb_dim", "proj_dim"):
        if width_of(directory, raw, key, inner) not in (inner, 0):
            raise ModelError(f"{directory / 'config.json'}: {key}={raw[key]!r} must equal inner_dim={inner}.")
    tied = bool(raw.get("tie_lstm_embs", "input_emb.0.weight" not in tensors))
    cell = LstmWeights(
        [weights.matrix(f"{gate}_emb.0.weight", sizes.vocabulary, inner) for gate in (GATES[:1] if tied else GATES)],
        _projection(weights, 0, inner, sizes.hidden),
        _projection(weights, 1, inner, inner),
        read_norm(weights, "cell_ln.0", inner),
        read_norm(weights, "state_ln.0", inner),
        weights.linear(_head(tensors, sizes.steps), sizes.vocabulary, inner, False),
    )
    weights.drop(*(f"head.{i}.weight" for i in range(sizes.steps)))
    if tied:
        weights.drop(*(f"{gate}_emb.0.weight" for gate in GATES))
    weights.finish("LSTM speculator")
    return LSTMSpeculator(target, sizes, cell)


def _projection(weights: Weights, i: int, inner: int, columns: int) -> Linear:
    if f"forget_proj.{i}.weight" in weights:
        return weights.fused([f"{gate}_proj.{i}" for gate in GATES], [inner] * len(GATES), columns, False)
    return weights.linear(f"projs.{i}", inner * len(GATES), columns, False)


def _head(tensors: dict[str, Tensor], steps: int) -> str:
    """The one head, under whichever number the file lists it."""
    return next((f"head.{i}" for i in range(steps) if f"head.{i}.weight" in tensors), "head.0")
