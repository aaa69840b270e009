"""A draft is a small tree of guesses below the last known token.

Nodes are numbered so that a parent comes before its children; parent -1 is the root, the last token the target has
already agreed to. A chain is the tree whose node i hangs from node i-1, and an empty tree is plain decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Draft:
    """Drafts of a batch, one line a request, padded to the same number of nodes."""

    tokens: Tensor  # int64 [G, N]; what lies past `count` is ignored
    parents: Tensor  # int64 [G, N]; -1 is the root
    count: Tensor  # int64 [G]: nodes in use
    probs: Tensor | None = None  # float32 [G, N, vocabulary] a sampling drafter's law at each node; None is one-hot

    @classmethod
    def empty(cls, groups: int, nodes: int, device: torch.device | str = "cpu") -> Draft:
        """No guesses for anyone."""
        blank = torch.zeros(groups, nodes, dtype=torch.int64, device=device)
        return cls(blank, chain_parents(groups, nodes, device), blank.new_zeros(groups))

    def depth(self) -> Tensor:
        """How deep each tree goes, int64 [G]."""
        used = torch.arange(self.parents.shape[1], device=self.parents.device) < self.count[:, None]
        return torch.where(used, shape_of(self.parents)[0], 0).amax(1)


def chain_parents(groups: int, nodes: int, device: torch.device | str = "cpu") -> Tensor:
    """Parents of a chain: -1, 0, 1, ..."""
    return (torch.arange(nodes, device=device) - 1).expand(groups, nodes).clone()


def shape_of(parents: Tensor) -> tuple[Tensor, Tensor]:
    """Depth (children of the root have depth 1) and ancestor bits (own bit included) of every node, both [G, N].

    A loop over columns: parents precede children, so each column needs only columns already done.
    """
    depth = torch.ones_like(parents)
    bits = torch.zeros_like(parents)
    for i in range(parents.shape[1]):
        parent = parents[:, i : i + 1]
        inside = parent >= 0
        above = parent.clamp(min=0)
        depth[:, i : i + 1] = torch.where(inside, depth.gather(1, above) + 1, 1)
        bits[:, i : i + 1] = torch.where(inside, bits.gather(1, above), 0) | (1 << i)
    return depth, bits
