"""The lossless rejection rules: `standard` and `block`, over chains and trees, for sampled and deterministic drafts.

Both follow first children while they are accepted, in a *block*: the root's block first, then that of every other child
that is accepted. They differ in where a block ends. What is left of the target's distribution there, once the first
child has been tried, is offered to the other children in turn (multi-round rejection), and whatever no child takes is
the distribution of the last token.

A group is one line of the batch. `p` is float [G, N+1, V], row 0 the target's distribution at the root and row i + 1 at
node i; `u` is [G, N] in [0, 1), independent of the draft. Shapes are static, nothing waits for the host, and nothing is
random. Tests and totals are float64, so that the order in which a device adds hardly matters.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from augury.verify.tree import Draft, Firsts, firsts
from augury.verify.verdict import Verdict, verdict_at

EXACT = torch.float64


def standard(p: Tensor, draft: Draft, active: Tensor, u: Tensor) -> Verdict:
    """Accept each child with probability min(1, p / q), first children first; a block ends at the first refusal."""
    tree = firsts(draft)
    held = passes(u, *chances(p, draft))
    whole = torch.ones(p.shape[:2], dtype=EXACT, device=p.device)
    return settle(p, draft, active, u, tree, block_ends(tree, held, early_stop=True), whole)


def block(p: Tensor, draft: Draft, active: Tensor, u: Tensor) -> Verdict:
    """Block verification (Sun et al., arXiv 2403.10444): a block ends at the deepest node whose test holds.

    On a chain no lossless rule accepts more. It is lossless on trees as well: given the nodes of a block, the other
    children at its end are drawn from known distributions, so the token that is due there may be drawn with their help.
    """
    tree = firsts(draft)
    target, drafted = chances(p, draft)
    carry = carried(tree, draft.parents, target, drafted)
    held = u < heights(p, draft, tree, carry, target)
    return settle(p, draft, active, u, tree, block_ends(tree, held, early_stop=False), carry)


def passes(u: Tensor, target: Tensor, drafted: Tensor) -> Tensor:
    """Whether u is below target / drafted; a token the drafter could not have drawn does not pass."""
    return (drafted > 0) & (u * drafted < target)


def chances(p: Tensor, draft: Draft) -> tuple[Tensor, Tensor]:
    """Probability of each node's token under the target at its parent, and under its drafter, both [G, N]."""
    groups = torch.arange(len(p), device=p.device)[:, None]
    target = _at(p, (groups, draft.parents + 1), draft.tokens)
    if draft.probs is None:
        return target, torch.ones_like(target)
    nodes = torch.arange(draft.tokens.shape[1], device=p.device)
    # Rounding must not put a certain token above 1: a greedy request would lose it.
    return target, _at(draft.probs, (groups, nodes), draft.tokens).clamp(max=1)


def _at(probs: Tensor, rows: tuple[Tensor, ...], tokens: Tensor) -> Tensor:
    """Entries of some rows at tokens that may lie outside the vocabulary, float64."""
    inside = (tokens >= 0) & (tokens < probs.shape[-1])
    return torch.where(inside, clean(probs[(*rows, tokens.clamp(0, probs.shape[-1] - 1))].to(EXACT)), 0.0)


def clean(probs: Tensor) -> Tensor:
    """Probabilities without NaN, infinities and negative numbers."""
    return probs.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0)


def block_ends(tree: Firsts, held: Tensor, early_stop: bool) -> Tensor:
    """Where the block ends that begins at the root (column 0) or node i (column i + 1), node numbers [G, N+1].

    Of the first children below one another it is the last before one that fails, or, without early stop, the last that
    holds. Children come after parents, so the columns are filled from the last.
    """
    columns = tree.child.shape[1]
    ends = torch.arange(-1, columns - 1, device=held.device).repeat(len(held), 1)
    for column in reversed(range(columns - 1)):
        child = tree.child[:, column]
        there = child.clamp(min=0)[:, None]
        below = ends.gather(1, there + 1)[:, 0]
        onward = held.gather(1, there)[:, 0]
        if not early_stop:
            onward = onward | (below != child)
        ends[:, column] = torch.where((child >= 0) & onward, below, ends[:, column])
    return ends


def carried(tree: Firsts, parents: Tensor, target: Tensor, drafted: Tensor) -> Tensor:
    """P of block verification, float64 [G, N+1]: 1 where a block begins, else min(P of the parent * p / q, 1)."""
    ratio = torch.where(drafted > 0, target / torch.where(drafted > 0, drafted, 1.0), 0.0)
    carry = torch.ones(tree.child.shape, dtype=EXACT, device=target.device)
    for i in range(parents.shape[1]):
        above = carry.gather(1, parents[:, i : i + 1] + 1)[:, 0]
        carry[:, i + 1] = torch.where(tree.leads[:, i], (above * ratio[:, i]).clamp(max=1), 1.0)
    return carry


def heights(p: Tensor, draft: Draft, tree: Firsts, carry: Tensor, target: Tensor) -> Tensor:
    """h of block verification, float64 [G, N]: how likely the block is to end no earlier than here."""
    mine, child = carry[:, 1:], tree.child[:, 1:]
    if draft.probs is None:  # P * (1 - p(d)), with no pass over the vocabulary
        left = mine * (1 - target.gather(1, child.clamp(min=0)))
    else:
        left = torch.zeros_like(mine)
        for i in range(left.shape[1]):
            if not _nobody(child[:, i] >= 0):
                q = proposal(draft, tree, child[:, i].clamp(min=0), p)
                left[:, i] = total(remainder(clean(p[:, i + 1]), q, mine[:, i]))
    scale = left + (1 - mine)
    inner = torch.where(scale > 0, left / torch.where(scale > 0, scale, 1.0), 1.0)
    return torch.where(child >= 0, inner, mine)


def _nobody(groups: Tensor) -> bool:
    """Whether no group is selected; looked at on a CPU alone, where it is free: elsewhere the work is done anyway."""
    return groups.device.type == "cpu" and not bool(groups.any())


def remainder(probs: Tensor, q: Tensor, carry: Tensor) -> Tensor:
    """The part of carry [G] * probs [G, V] that a proposal does not cover."""
    return (probs * carry[:, None].to(probs.dtype) - q).clamp(min=0)


def proposal(draft: Draft, tree: Firsts, node: Tensor, like: Tensor) -> Tensor:
    """The distribution that the tokens of nodes int64 [G] were drawn from, over the target's vocabulary, [G, V]."""
    vocab = like.shape[-1]
    if draft.probs is None:
        return (torch.arange(vocab, device=node.device) == draft.tokens.gather(1, node[:, None])).to(like.dtype)
    q = clean(draft.probs[torch.arange(len(node), device=node.device), node].to(like.dtype))
    if draft.distinct:
        q = normalised(q * _untaken(draft, tree, node, q))
    return pad(q, (0, vocab - q.shape[1]))  # a negative pad trims: the target gives those tokens probability 0


def _untaken(draft: Draft, tree: Firsts, node: Tensor, like: Tensor) -> Tensor:
    """0 at the tokens of the siblings before each node, 1 elsewhere, [G, V]."""
    number, width = torch.arange(draft.tokens.shape[1], device=node.device), like.shape[1]
    siblings = draft.parents == draft.parents.gather(1, node[:, None])
    earlier = tree.real & siblings & (number < node[:, None]) & (draft.tokens < width)
    # An extra column takes what is not an earlier sibling.
    return like.new_ones(len(node), width + 1).scatter(1, torch.where(earlier, draft.tokens, width), 0)[:, :width]


def total(probs: Tensor) -> Tensor:
    """Sums of rows, float64 [G]."""
    return probs.sum(1, dtype=EXACT)


def normalised(probs: Tensor) -> Tensor:
    """Rows that sum to 1, or stay zero."""
    mass = total(probs)
    return probs * torch.where(mass > 0, 1 / mass, 0.0)[:, None].to(probs.dtype)


def settle(p: Tensor, draft: Draft, active: Tensor, u: Tensor, tree: Firsts, ends: Tensor, carry: Tensor) -> Verdict:
    """Go from block to block, and find the distribution of the last token.

    One pass in node order: children that are offered what a block left over come after its end.
    """
    groups, one = torch.arange(len(p), device=p.device), torch.ones_like(carry[:, 0])

    def leftover(node: Tensor) -> Tensor:
        """The distribution at a block's end once its first child is refused; without a child, the target's own."""
        probs, child = clean(p[groups, node + 1]), tree.child[groups, node + 1]
        if not draft.tokens.shape[1] or _nobody(child >= 0):
            return probs
        return refused(probs, proposal(draft, tree, child.clamp(min=0), probs), child >= 0, carry[groups, node + 1])

    node = ends[:, 0]
    probs = leftover(node)
    for i in range(draft.tokens.shape[1] if draft.branching else 0):
        tried = active & tree.real[:, i] & ~tree.leads[:, i] & (draft.parents[:, i] == node)
        if _nobody(tried):
            continue
        q, token = proposal(draft, tree, torch.full_like(node, i), probs), draft.tokens[:, i]
        taken = tried & passes(u[:, i], _at(probs, (groups,), token), _at(q, (groups,), token))
        probs = refused(probs, q, tried & ~taken, one)
        node = torch.where(taken, ends[:, i + 1], node)
        if not _nobody(taken):
            probs = torch.where(taken[:, None], leftover(node), probs)
    return verdict_at(node, probs, draft, active)


def refused(probs: Tensor, q: Tensor, where: Tensor, carry: Tensor) -> Tensor:
    """The distribution after a proposal was refused, normalised, in the groups where it was.

    Only rounding refuses a token when nothing would be left; then the distribution stays what it was.
    """
    left = normalised(remainder(probs, q, carry))
    return torch.where((where & (left.amax(1) > 0))[:, None], left, probs)
