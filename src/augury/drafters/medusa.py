"""Medusa: each head predicts one position, all from the same hidden state; drafts a chain of the best, or a tree."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

from augury.config.speculative import SpeculativeConfig
from augury.config.tree_literal import Path, parents_of
from augury.drafters.base import DrafterSetup, DraftInput
from augury.drafters.checkpoint import find_drafter
from augury.drafters.features import last_features
from augury.drafters.rows import most_steps
from augury.drafters.stateless import StatelessDrafter
from augury.model.errors import ModelError
from augury.model.heads.medusa import MedusaHeads
from augury.model.load import choose_head_dtype
from augury.verify.tree import Draft, chain_parents


class MedusaDrafter(StatelessDrafter):
    """Reads the hidden state that the newest token was drawn from; keeps nothing between steps."""

    name = "medusa"

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Load the heads that the chain or the tree needs."""
        super().__init__(config, setup)
        target, paths = setup.target, self.paths
        dtype = choose_head_dtype(setup.dtype, target)
        self.heads = MedusaHeads.load(find_drafter(config, setup.dummy), target, dtype, self.depth, setup.dummy)
        known = target.vocab_size if self.heads.tokens is None else len(self.heads.tokens)
        self._tree: LiteralTree | MarginalTree | None = None
        if paths:
            self._tree = LiteralTree(paths, known, target.device)
        elif config.tree:
            self._tree = MarginalTree(self.nodes, min(config.tree.top_k, known), self.depth, target.device)

    @property
    def network(self) -> object | None:
        """See Drafter.network."""
        return self.heads

    def propose(self, inputs: DraftInput) -> Draft:
        """Draft from the last hidden state of every group that may."""
        budget = self.affordable(inputs)
        steps = most_steps(inputs, budget, self.nodes)
        if steps == 0:
            return Draft.empty(len(budget), self.nodes, budget.device)
        (hidden,) = last_features(inputs)
        if self._tree is not None:
            tokens, parents = self._tree.grow(self.heads.scores(hidden, self.depth))
            count = budget.clamp(max=tokens.shape[1])
            spare = (0, self.nodes - tokens.shape[1])
            return Draft(pad(self.heads.named(tokens), spare), pad(parents, spare, value=-1), count)
        tokens = torch.zeros(len(budget), self.nodes, dtype=torch.int64, device=hidden.device)
        for i, scores in enumerate(self.heads.scores(hidden, steps)):
            tokens[:, i] = self.heads.named(scores.argmax(1))
        return Draft(tokens, chain_parents(len(budget), self.nodes, tokens.device), budget, branching=False)


class LiteralTree:
    """A tree whose shape the user wrote: path (i, j) is the i-th best of head 0, then the j-th best of head 1."""

    def __init__(self, paths: list[Path], known: int, device: torch.device) -> None:
        self.parents = torch.tensor(parents_of(paths), device=device)
        depth = max(map(len, paths))
        self.widths = [1 + max(path[-1] for path in paths if len(path) == d) for d in range(1, depth + 1)]
        if max(self.widths) > known:
            raise ModelError(f"speculative_token_tree asks for {max(self.widths)} best tokens; there are {known}.")
        starts = [sum(self.widths[:d]) for d in range(depth)]
        self.places = torch.tensor([starts[len(path) - 1] + path[-1] for path in paths], device=device)

    def grow(self, scores: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Tokens and parents, both [G, N], from a list of logits [G, V], one for each depth."""
        best = [logits.topk(width).indices for logits, width in zip(scores, self.widths, strict=True)]
        tokens = torch.cat(best, dim=1)[:, self.places]
        return tokens, self.parents.expand_as(tokens)


class MarginalTree:
    """The likeliest paths if each depth has a distribution of its own, whatever the path; chosen again every step.

    A path's probability is the product along it, so all paths of no higher rank anywhere, and all their prefixes, are
    at least as likely. A path with `nodes` or more such superiors is never chosen, which leaves so few candidates that
    one sort of them all is the best-first search. Sorted, a parent comes before its children, and the first n nodes are
    the best n.
    """

    def __init__(self, nodes: int, top_k: int, depth: int, device: torch.device) -> None:
        ranks = contenders(nodes, top_k, depth)
        number = {path: i for i, path in enumerate(ranks)}
        self.nodes, self.top_k = min(nodes, len(ranks)), top_k
        self.parents = torch.tensor([number.get(path[:-1], -1) for path in ranks], device=device)
        self.levels: list[tuple[Tensor, Tensor]] = []  # indices of the parents one level up, and the last ranks
        above: dict[Path, int] = {(): 0}
        for d in range(1, depth + 1):
            level = [path for path in ranks if len(path) == d]
            pairs = torch.tensor([(above[path[:-1]], path[-1]) for path in level], dtype=torch.int64, device=device)
            self.levels.append((pairs.view(-1, 2)[:, 0], pairs.view(-1, 2)[:, 1]))
            above = {path: i for i, path in enumerate(level)}

    def grow(self, scores: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Tokens and parents, both [G, N], from a list of logits [G, V], one for each depth."""
        above = scores[0].new_zeros(len(scores[0]), 1)
        chances, tokens = [], []
        for logits, (parents, ranks) in zip(scores, self.levels, strict=True):
            chance, token = likeliest(logits, self.top_k)
            above = above[:, parents] + chance[:, ranks]
            chances.append(above)
            tokens.append(token[:, ranks])
        # Candidates come after their superiors, and a stable sort keeps that order among equals.
        order = torch.cat(chances, 1).sort(stable=True, dim=1, descending=True).indices[:, : self.nodes]
        return torch.cat(tokens, 1).gather(1, order), renumbered(self.parents[order], order, len(self.parents))


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best tokens of each line and their log-probabilities, [R, count] both."""
    logits = logits.float()
    best = logits.topk(count)
    # Rounding must not lift a child above its parent, so nothing is above 0.
    return (best.values - logits.logsumexp(1, keepdim=True)).clamp(max=0), best.indices


def renumbered(parents: Tensor, order: Tensor, candidates: int) -> Tensor:
    """Parents by their candidate numbers [G, N] as node numbers, when node i is candidate order[:, i]; -1 stays."""
    groups, nodes = order.shape
    index = torch.arange(nodes, device=order.device).expand(groups, nodes)
    node_of = torch.full((groups, candidates), -1, dtype=torch.int64, device=order.device).scatter(1, order, index)
    return torch.where(parents >= 0, node_of.gather(1, parents.clamp(min=0)), -1)


def contenders(nodes: int, top_k: int, depth: int) -> list[Path]:
    """The rank paths that can be among the `nodes` best, by length and rank: each comes after all its superiors."""
    found: list[Path] = []
    level: list[tuple[Path, int, int]] = [((), 1, 0)]  # path, paths at its depth that beat or equal it, those above
    for _ in range(depth):
        grown = [
            ((*path, rank), width * (rank + 1), above + width * (rank + 1))
            for (path, width, above), rank in product(level, range(min(top_k, nodes)))
        ]
        level = [entry for entry in grown if entry[2] <= nodes]
        found += [path for path, _, _ in level]
    return found
