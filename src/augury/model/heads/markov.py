"""DSpark's sequential part: a low-rank correction of each token's scores by the token before it.

Scores of a block come from one pass and do not depend on each other's tokens. The correction adds
W2 W1[previous token], in two releases shaped by the block's own hidden state: through a gate, or through a small
recurrent state.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from augury.model.errors import ModelError
from augury.model.heads.files import Weights
from augury.model.layers import Linear

KINDS = {"vanilla": None, "gated": "gate_proj", "rnn": "joint_proj"}  # and the additional matrix of each


@dataclass(slots=True)
class Markov:
    """The correction's weights."""

    kind: str
    rows: Tensor  # W1 [V, rank]: one for each token of the target
    out: Linear  # W2 [draft vocabulary, rank]
    inner: Linear | None

    @property
    def carries_state(self) -> bool:
        """Whether the correction depends on more than the last token."""
        return self.kind == "rnn"

    def start(self, groups: int) -> Tensor | None:
        """The state before the first token of a block, [G, rank]."""
        return self.rows.new_zeros(groups, self.rows.shape[1]) if self.carries_state else None

    def __call__(self, previous: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What to add to scores [R, draft vocabulary], from tokens [R] and hidden states [R, H]; and the next state."""
        read = self.rows[previous]
        if self.kind == "vanilla":
            return self.out(read).float(), None
        assert self.inner is not None
        if self.kind == "gated":
            gate = torch.sigmoid(self.inner(torch.cat([hidden.to(read.dtype), read], dim=1)))
            return self.out(gate * read).float(), None
        assert state is not None
        joined = self.inner(torch.cat([state, read, hidden.to(read.dtype)], dim=1))
        gate, fresh, shown = joined.chunk(3, dim=1)
        keep = torch.sigmoid(gate)
        return self.out(torch.tanh(shown)).float(), keep * state + (1 - keep) * torch.tanh(fresh)


def read_markov(weights: Weights, raw: dict[str, Any], directory: Path, sizes: tuple[int, int, int]) -> Markov | None:
    """Read the correction; `sizes`: target's vocabulary, drafter's vocabulary, hidden size. None if its rank is 0."""
    vocab, own, hidden = sizes
    rank = raw.get("markov_rank", 256)
    kind = raw.get("markov_head_type") or "vanilla"
    if kind not in KINDS:
        raise ModelError(f"{directory}: markov_head_type={kind!r} is unknown; known are {', '.join(KINDS)}.")
    if not isinstance(rank, int) or rank < 0:
        raise ModelError(f"{directory}: markov_rank={rank!r} must be a whole number, 0 for none.")
    if rank == 0:
        return None
    inner = None
    if kind == "gated":
        inner = weights.linear("markov_head.gate_proj", rank, hidden + rank)
    elif kind == "rnn":
        inner = weights.linear("markov_head.joint_proj", 3 * rank, 2 * rank + hidden)
    rows = weights.matrix("markov_head.markov_w1.weight", vocab, rank)
    return Markov(kind, rows, weights.linear("markov_head.markov_w2", own, rank, bias=False), inner)
