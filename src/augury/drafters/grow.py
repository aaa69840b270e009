"""Draft trees from any head that drafts token by token: the likeliest children, level by level.

`grow_best` keeps the nodes whose paths are likeliest (EAGLE-2's dynamic tree); `grow_fixed` has a shape given in
advance. Nodes are ordered by the log-probability of their paths less EDGE for every edge: of two that are nearly tied,
the one nearer to the root comes first, and of two that are exactly tied the one that was made first, which is the one
whose parent ranks higher. Both are static in shape: a level is one pass over as many nodes per group as may have
children.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.speculative import SpeculativeConfig
from augury.config.tree_literal import Path, parents_of, read_tree
from augury.kernels.top import top_children
from augury.verify.tree import Draft

EDGE = 1e-3  # every edge costs this much, so that a child never ties with its parent and the best nodes form a tree


@dataclass(slots=True)
class TreeLevel:
    """Nodes that were run together, [G, W]: their logits and the states to continue with."""

    logits: Tensor  # float32 [G, W, V]
    states: Tensor | None  # [G, W, H]
    bits: Tensor  # int64 [G, W]: ancestors, itself included, in the drafter's own numbering
    targets: Tensor | None = None  # int64 [V]: the target's id of each token of a drafter's own vocabulary


Run = Callable[[Tensor, Tensor | None, Tensor, int, int], tuple[Tensor, Tensor | None]]
"""(tokens [G, W], states of their parents [G, W, H], bits [G, W], depth, number of the first) -> logits, states."""


def grow_best(root: TreeLevel, run: Run, depth: int, top_k: int, most: int, budget: Tensor) -> Draft:
    """The `most` nodes with the likeliest paths of a tree in which each level's best `top_k` nodes have children."""
    tokens, scores = _children(root, root.logits.new_zeros(len(root.logits), 1, dtype=torch.float32), top_k)
    parents = torch.full_like(tokens, -1)
    all_tokens, all_scores, all_parents = [tokens], [scores], [parents]
    level, up, first, number = root, torch.zeros_like(tokens), 0, 0
    for at in range(2, depth + 1):
        chosen = _likeliest(scores, top_k)
        level = _run(run, level, tokens.gather(1, chosen), up.gather(1, chosen), at - 1, number)
        index = first + chosen  # among all nodes
        first, number = first + tokens.shape[1], number + chosen.shape[1]
        tokens, scores = _children(level, scores.gather(1, chosen), top_k)
        up = torch.arange(chosen.shape[1], device=tokens.device).repeat_interleave(top_k).expand_as(tokens)
        all_tokens.append(tokens)
        all_scores.append(scores)
        all_parents.append(index.gather(1, up))
    return _best(torch.cat(all_tokens, 1), torch.cat(all_scores, 1), torch.cat(all_parents, 1), most, budget)


def grow_fixed(root: TreeLevel, run: Run, paths: list[Path], budget: Tensor) -> Draft:
    """The tree of these paths: (0, 1) is the second-likeliest child of the likeliest child."""
    tokens = torch.zeros(len(budget), len(paths), dtype=torch.int64, device=budget.device)
    numbers: dict[Path, int] = {(): 0}  # each inner node's place in its level
    level, depth, number = root, 1, 0
    while True:
        here = [i for i, path in enumerate(paths) if len(path) == depth]
        if not here:
            break
        widest = max(paths[i][-1] for i in here) + 1
        ranked = top_children(level.logits, widest, level.targets)[0]
        for i in here:
            tokens[:, i] = ranked[:, numbers[paths[i][:-1]], paths[i][-1]]
        inner = [i for i in here if any(p[:-1] == paths[i] for p in paths)]
        if not inner:
            break
        up = _constant([numbers[paths[i][:-1]] for i in inner], budget)
        level = _run(run, level, torch.stack([tokens[:, i] for i in inner], dim=1), up, depth, number)
        numbers = {paths[i]: place for place, i in enumerate(inner)}
        depth, number = depth + 1, number + len(inner)
    return Draft(tokens, _constant(parents_of(paths), budget).contiguous(), budget.clamp(max=len(paths)))


def _constant(values: list[int], budget: Tensor) -> Tensor:
    """The same numbers for every group, [G, n], made on the device: a captured graph copies nothing to it."""
    columns = [torch.full_like(budget, value) for value in values]
    return torch.stack(columns, dim=1)


def _children(level: TreeLevel, scores: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The likeliest tokens below every node of a level, and the scores of their paths, both [G, W * top_k]."""
    tokens, logprobs = top_children(level.logits, top_k, level.targets)
    return tokens.flatten(1), (scores[:, :, None] + logprobs - EDGE).flatten(1)


def _run(run: Run, above: TreeLevel, tokens: Tensor, up: Tensor, depth: int, number: int) -> TreeLevel:
    """Run nodes [G, W] whose parents are places `up` of the level above."""
    own = 1 << torch.arange(number, number + tokens.shape[1], device=tokens.device)
    bits = above.bits.gather(1, up) | own
    states = None
    if above.states is not None:
        states = above.states.gather(1, up[:, :, None].expand(*up.shape, above.states.shape[2]))
    logits, onward = run(tokens, states, bits, depth, number)
    return TreeLevel(logits, onward, bits, above.targets)


def _best(tokens: Tensor, scores: Tensor, parents: Tensor, most: int, budget: Tensor) -> Draft:
    """The best nodes, best first: parents outrank their children, so any number of them from the front is a tree."""
    kept = _likeliest(scores, most)
    width = kept.shape[1]
    rank = torch.full_like(tokens, -1).scatter(1, kept, torch.arange(width, device=kept.device).expand_as(kept))
    above = parents.gather(1, kept)
    renamed = torch.where(above >= 0, rank.gather(1, above.clamp(min=0)), -1)
    short = most - width  # fewer candidates than nodes asked for
    pad = torch.nn.functional.pad
    return Draft(pad(tokens.gather(1, kept), (0, short)), pad(renamed, (0, short), value=-1), budget.clamp(max=width))


def _likeliest(scores: Tensor, most: int) -> Tensor:
    """The best nodes, best first, int64 [G, n]; of equal ones the first made, which topk does not guarantee."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :most]


def root_level(logits: Tensor, states: Tensor | None, targets: Tensor | None = None) -> TreeLevel:
    """The last known token as a level of one node."""
    bits = torch.zeros(len(logits), 1, dtype=torch.int64, device=logits.device)
    return TreeLevel(logits[:, None], states[:, None] if states is not None else None, bits, targets)


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The tree that a configuration asks for: by `paths`, or else by depth, top_k and most."""

    depth: int = 0
    top_k: int = 0
    most: int = 0
    paths: tuple[Path, ...] = ()

    @classmethod
    def of(cls, config: SpeculativeConfig, known: int) -> TreeShape | None:
        """From `tree` or `speculative_token_tree`, for a vocabulary of `known` tokens."""
        if not config.drafts_trees:
            return None
        if config.tree is not None:
            return cls(config.num_speculative_tokens, min(config.tree.top_k, known), config.tree.max_nodes)
        return cls(paths=tuple(read_tree(config.speculative_token_tree or ""))).check(known)

    def check(self, known: int) -> TreeShape:
        """Refuse ranks that a vocabulary of `known` tokens does not have."""
        widest = 1 + max((path[-1] for path in self.paths), default=0)
        if widest > known:
            raise ConfigError(
                f"speculative_config.speculative_token_tree names child {widest - 1} of a node, but there are only "
                f"{known} tokens; write smaller numbers."
            )
        return self

    def grow(
        self, logits: Tensor, states: Tensor | None, run: Run, budget: Tensor, targets: Tensor | None = None
    ) -> Draft:
        """Grow it from the logits after the last known token; `targets`: the target's ids of other vocabularies."""
        root = root_level(logits, states, targets)
        if self.paths:
            return grow_fixed(root, run, list(self.paths), budget)
        return grow_best(root, run, self.depth, self.top_k, self.most, budget)
