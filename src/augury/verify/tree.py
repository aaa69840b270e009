"""A draft is a small tree of candidate tokens below the last known token.

Nodes are numbered so that a parent comes before its children; parent -1 is the root, the last known token. A chain is
the tree in which node i is the child of node i-1, and an empty tree is plain decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(slots=True)
class Draft:
    """Drafts of a batch, one line per request, padded to the same number of nodes."""

    tokens: Tensor  # int64 [G, N]; what lies past `count` is ignored
    parents: Tensor  # int64 [G, N]; -1 is the root
    count: Tensor  # int64 [G]: nodes in use
    probs: Tensor | None = None  # float32 [G, N, vocabulary]: the distribution of each node's draft; None is one-hot
    distinct: bool = False  # siblings were drawn without replacement; `probs` is still that of a first child
    branching: bool = True  # a node may have a second child; False spares the rules looking for one

    @classmethod
    def empty(cls, groups: int, nodes: int, device: torch.device | str = "cpu") -> Draft:
        """Empty drafts for all groups."""
        blank = torch.zeros(groups, nodes, dtype=torch.int64, device=device)
        return cls(blank, chain_parents(groups, nodes, device), blank.new_zeros(groups))

    def depth(self) -> Tensor:
        """How deep each tree goes, int64 [G]."""
        used = torch.arange(self.parents.shape[1], device=self.parents.device) < self.count[:, None]
        return pad(torch.where(used, shape_of(self.parents)[0], 0), (1, 0)).amax(1)  # a root has depth 0


def chain_parents(groups: int, nodes: int, device: torch.device | str = "cpu") -> Tensor:
    """Parents of a chain: -1, 0, 1, ..."""
    return torch.arange(-1, nodes - 1, device=device).repeat(groups, 1)


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


class Firsts(NamedTuple):
    """Which nodes are real, and the first real child of each: the paths that rules follow before all others."""

    real: Tensor  # bool [G, N]: in use and not a placeholder
    leads: Tensor  # bool [G, N]: real, and the first such child of its parent
    child: Tensor  # int64 [G, N+1]: the first real child of the root (column 0) and of node i (column i + 1), or -1


def firsts(draft: Draft) -> Firsts:
    """Find every first child; a placeholder does not count as a child, so its descendants are out of reach."""
    groups, nodes = draft.tokens.shape
    index = torch.arange(nodes, device=draft.tokens.device)
    real = (draft.tokens >= 0) & (index < draft.count[:, None])
    leads = first_of_siblings(real, draft.parents)
    # An extra column takes the nodes that are not first children.
    place = torch.where(leads, draft.parents + 1, nodes + 1)
    child = draft.tokens.new_full((groups, nodes + 2), -1).scatter(1, place, index.expand(groups, nodes))
    return Firsts(real, leads, child[:, : nodes + 1])


def first_of_siblings(chosen: Tensor, parents: Tensor) -> Tensor:
    """Of the chosen children of one node, the first, bool [G, N]."""
    return _first(chosen, _equal(parents))


def first_of_twins(chosen: Tensor, draft: Draft) -> Tensor:
    """Of the chosen children of one node that carry the same token, the first, where a walk goes; bool [G, N]."""
    return _first(chosen, _equal(draft.parents) & _equal(draft.tokens))


def _equal(values: Tensor) -> Tensor:
    return values[:, :, None] == values[:, None, :]


def _first(chosen: Tensor, alike: Tensor) -> Tensor:
    earlier = torch.ones_like(alike).tril(-1)
    return chosen & ~(alike & earlier & chosen[:, None, :]).any(2)


def path_to(node: Tensor, parents: Tensor) -> Tensor:
    """The nodes from the root down to int64 [G] nodes, as bool [G, N]; -1 is the root itself."""
    bits = shape_of(parents)[1].gather(1, node.clamp(min=0)[:, None]) if parents.shape[1] else parents
    index = torch.arange(parents.shape[1], device=parents.device)
    return (node >= 0)[:, None] & (bits >> index & 1).bool()


def listed(on_path: Tensor) -> Tensor:
    """Node numbers of a path in order, int64 [G, N], padded with -1."""
    groups, nodes = on_path.shape
    # Parents come before children, so node order is path order; an extra column takes what is off the path.
    place = torch.where(on_path, on_path.cumsum(1) - 1, nodes)
    index = torch.arange(nodes, device=on_path.device).expand(groups, nodes)
    return index.new_full((groups, nodes + 1), -1).scatter(1, place, index)[:, :nodes]


def rooted(taken: Tensor, parents: Tensor) -> Tensor:
    """Nodes that are taken together with all their ancestors; by doubling."""
    up = parents
    for _ in range(parents.shape[1].bit_length()):
        above = up.clamp(min=0)
        taken = taken & ((up < 0) | taken.gather(1, above))
        up = torch.where(up < 0, up, up.gather(1, above))
    return taken


def first_outside(tokens: Tensor, vocab: int) -> Tensor:
    """The first node of each draft [G, N] whose token is outside the vocabulary, or N; int64 [G]."""
    outside = (tokens < 0) | (tokens >= vocab)
    return torch.where(outside.any(1), outside.to(torch.int8).argmax(1), tokens.shape[1])
