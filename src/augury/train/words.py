"""Labels and output matrices over part of a vocabulary: a few thousand tokens are enough to train on, and cheap."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # cross_entropy leaves such labels out
STRANGERS = 4096  # other tokens that compete with the words in a step


def places(words: Tensor, labels: Tensor) -> Tensor:
    """The index of each label among sorted words; IGNORED for labels below 0 and for tokens that are not among them."""
    at = torch.searchsorted(words, labels.clamp(min=0)).clamp(max=len(words) - 1)
    return torch.where((labels >= 0) & (words[at] == labels), at, IGNORED)


def word_loss(logits: Tensor, words: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of logits [R, words] against token numbers [R]."""
    return F.cross_entropy(logits, places(words, labels), ignore_index=IGNORED)


class Competition:
    """The loss through a frozen output matrix: the words against other tokens, drawn anew every step."""

    def __init__(self, head: Tensor, words: Tensor, seed: int = 0) -> None:
        self._head, self._words = head, words
        self._dice = torch.Generator().manual_seed(seed)

    def draw(self) -> None:
        """Draw the tokens that compete in this step."""
        others = torch.randint(len(self._head), (STRANGERS,), generator=self._dice)
        self._present: Tensor = torch.cat([self._words, others]).unique()
        self._rows = self._head[self._present]

    @property
    def present(self) -> Tensor:
        """The tokens that compete, sorted."""
        return self._present

    def loss(self, states: Tensor, labels: Tensor, more: Tensor | None = None) -> Tensor:
        """The loss of states [R, H] that the matrix reads; `more` [R, competitors] is added to their logits."""
        logits = states @ self._rows.T
        return word_loss(logits if more is None else logits + more, self._present, labels)


def fading(losses: list[Tensor]) -> Tensor:
    """Combine losses by depth, later ones weighing less: a guess counts only where all before it were right."""
    weights = [0.8**depth for depth in range(len(losses))]
    return torch.stack([w * loss for w, loss in zip(weights, losses, strict=True)]).sum() / sum(weights)
