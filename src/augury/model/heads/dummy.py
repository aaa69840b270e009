"""A head's weights that come from no file: every tensor its loader reads is created."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from augury.model.dummy import random_tensor
from augury.model.heads.files import Weights

HEAD_NORMS = ("q_norm.weight", "k_norm.weight")


class DummyWeights(Weights):
    """The interface of Weights; of optional tensors it has those whose names end in `has`."""

    def __init__(self, directory: Path, dtype: torch.dtype, device: torch.device, has: tuple[str, ...] = ()) -> None:
        super().__init__(directory, {}, dtype, device)
        self._has = has

    def __contains__(self, name: str) -> bool:
        return name.endswith(self._has)

    def raw(self, name: str, *shape: int) -> Tensor:
        """Create the tensor."""
        return random_tensor(name, shape, self.dtype, self.device)

    def targets(self, vocab: int, target: int) -> Tensor | None:
        """The tokens of a smaller vocabulary, spread evenly over the target's; None if it is not smaller."""
        return None if vocab == target else spread_tokens(vocab, target, self.device)


def spread_tokens(vocab: int, target: int, device: torch.device) -> Tensor:
    """Ids of `vocab` different tokens of the target's, int64 [vocab], rising."""
    return torch.arange(vocab, device=device) * target // vocab
