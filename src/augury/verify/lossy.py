"""Lossy rules, named as such: they trade exactness for longer accepted paths.

Contract and arguments are those of rejection.py. A deterministic target (a greedy request: one-hot distributions) loses
nothing under any of them but `synthetic`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from augury.verify.rejection import EXACT, block_ends, carried, chances, clean, passes, settle, standard
from augury.verify.sampling import Outcome
from augury.verify.tree import Draft, Firsts, first_of_twins, firsts, listed, rooted, shape_of
from augury.verify.verdict import Verdict, verdict_at

TYPICAL_FLOOR, RAW_FLOOR = 1e-5, 1e-10  # what keeps logarithms finite, in Medusa's and in vllm-ascend's entropy
ASCEND_DEPTH = 3  # vllm-ascend's block rule starts with drafts this long


def typical(p: Tensor, draft: Draft, active: Tensor, u: Tensor, threshold: float = 0.09, alpha: float = 0.3) -> Verdict:
    """Typical acceptance (Medusa): accept what the target finds likely enough, given its own uncertainty.

    A token passes if p > min(threshold, alpha * exp(-entropy)). Of the longest passing paths the likeliest is taken;
    of siblings with one token only the first counts, so that a greedy request gets what a walk by its argmax gives.
    Nothing is random before the last token: `u` is not read.
    """
    spread = torch.stack([_entropy(clean(row), TYPICAL_FLOOR) for row in p.unbind(1)], dim=1)
    bar = (alpha * torch.exp(-spread)).clamp(max=threshold)
    target = chances(p, draft)[0]
    likely = first_of_twins(firsts(draft).real, draft) & (target > bar.gather(1, draft.parents + 1))
    depth = shape_of(draft.parents)[0]
    # Column 0 is the root: reached, at depth 0.
    reached = torch.ones(p.shape[:2], dtype=torch.bool, device=p.device)
    score = torch.zeros(p.shape[:2], dtype=EXACT, device=p.device)
    for i in range(depth.shape[1]):
        above = draft.parents[:, i : i + 1] + 1
        reached[:, i + 1] = reached.gather(1, above)[:, 0] & likely[:, i]
        score[:, i + 1] = score.gather(1, above)[:, 0] + target[:, i].log()
    level = torch.where(reached, pad(depth, (1, 0)), -1)
    longest = level == level.amax(1, keepdim=True)
    node = torch.where(longest, score, -math.inf).argmax(1) - 1
    return verdict_at(node, clean(p[torch.arange(len(p), device=p.device), node + 1]), draft, active)


def entropy(
    p: Tensor, draft: Draft, active: Tensor, u: Tensor, spread: Tensor, threshold: float = 0.95, alpha: float = 0.4
) -> Verdict:
    """Entropy verify (vllm-ascend): `standard`, with a lower threshold where the target is uncertain.

    `spread` [G, N+1] is the entropy of the target's raw distribution at the root and every node. The distribution after
    a refusal is not corrected for the lower threshold, hence the bias. With alpha 0 and threshold 1 it is `standard`.
    """
    return standard(p, draft, active, u * _leniency(spread, draft, threshold, alpha))


def ascend_block(
    p: Tensor,
    draft: Draft,
    active: Tensor,
    u: Tensor,
    spread: Tensor | None = None,
    threshold: float = 0.95,
    alpha: float = 0.4,
) -> Verdict:
    """vllm-ascend's "block verify", which is not block verification: one threshold for the product of the uniforms.

    A block ends at its deepest node where min(P * p / q, 1) exceeds the product of its uniforms so far. Trees less than
    three deep fall back to `standard`. With `spread` it is combined with `entropy`.
    """
    tree = firsts(draft)
    target, drafted = chances(p, draft)
    if spread is not None:
        lenient = _leniency(spread, draft, threshold, alpha)
    else:
        lenient = torch.ones_like(target)
    carry = carried(tree, draft.parents, target, drafted)
    held = _products(tree, draft.parents, u) * lenient < carry[:, 1:]
    single = block_ends(tree, passes(u * lenient, target, drafted), early_stop=True)
    ends = torch.where(draft.depth()[:, None] >= ASCEND_DEPTH, block_ends(tree, held, early_stop=False), single)
    return settle(p, draft, active, u * lenient, tree, ends, torch.ones_like(carry))


def synthetic(p: Tensor, draft: Draft, active: Tensor, u: Tensor, rates: Tensor) -> Verdict:
    """Accept first children by conditional rates [K], one per depth, whatever the models say or the request forbids.

    The last token follows the target's own distribution where the accepted path ends. For benchmarks only: accepted
    tokens may be ones that a bias, a ban or a grammar excludes. The engine runs `synthetic_walk`, which has this
    distribution.
    """
    node = _deepest(_by_rates(draft, u, rates))
    return verdict_at(node, clean(p[torch.arange(len(p), device=p.device), node + 1]), draft, active)


def synthetic_walk(drawn: Tensor, first: Tensor, draft: Draft, u: Tensor, rates: Tensor) -> Outcome:
    """`synthetic` on the target's own draws [L], of which group g's root has line first[g] and node i the (i + 1)-th
    after it; -1 is an inactive group."""
    active, tokens = first >= 0, draft.tokens
    taken = _by_rates(draft, u, rates) & active[:, None]
    accepted, column = taken.sum(1), torch.arange(tokens.shape[1] + 1, device=drawn.device)
    if draft.branching:
        path, line = listed(taken), first + 1 + _deepest(taken)
        tokens = torch.where(path >= 0, tokens.gather(1, path.clamp(min=0)), -1)
    else:  # node i is the (i + 1)-th of its path
        path, line = torch.where(taken, column[:-1], -1), first + accepted
        tokens = torch.where(taken, tokens, -1)
    ends = active[:, None] & (column == accepted[:, None])
    emitted = torch.where(ends, drawn[line.clamp(min=0)][:, None], pad(tokens, (0, 1), value=-1))
    return Outcome(emitted, torch.where(active, accepted + 1, 0), accepted, path)


def _by_rates(draft: Draft, u: Tensor, rates: Tensor) -> Tensor:
    """The nodes that are accepted together with everything above them, bool [G, N]: a path of first children."""
    nodes = draft.tokens.shape[1]
    rates = rates.to(EXACT)
    if len(rates) < nodes:
        rates = pad(rates, (0, nodes - len(rates)))
    if not draft.branching:  # a chain: node i has depth i + 1
        real = (draft.tokens >= 0) & (torch.arange(nodes, device=u.device) < draft.count[:, None])
        return (real & (u < rates[:nodes])).to(torch.uint8).cumprod(1).bool()
    return rooted(firsts(draft).leads & (u < rates[shape_of(draft.parents)[0] - 1]), draft.parents)


def _deepest(taken: Tensor) -> Tensor:
    """The last node of each path, int64 [G]; -1: the root."""
    index = torch.arange(1, taken.shape[1] + 1, device=taken.device)
    return pad(torch.where(taken, index, 0), (1, 0)).amax(1) - 1


def conditional_rates(rates: Sequence[float]) -> list[float]:
    """From "the first i drafts are accepted this often" to "draft i is, given those before it"."""
    return [rate / before if before else 0.0 for rate, before in zip(rates, [1.0, *rates], strict=False)]


def raw_entropy(logits: Tensor) -> Tensor:
    """Entropy of the target's raw distribution, float32 [L] from [L, V]; NaN counts as impossible."""
    return _entropy(clean(torch.softmax(logits.nan_to_num(nan=-math.inf), dim=1, dtype=torch.float32)), RAW_FLOOR)


def _entropy(probs: Tensor, floor: float) -> Tensor:
    """-sum p log(p + floor) of every row."""
    return -(probs * (probs + floor).log()).sum(1)


def _leniency(spread: Tensor, draft: Draft, threshold: float, alpha: float) -> Tensor:
    """What each node's uniform is multiplied by: min(exp(-alpha * entropy), threshold), float64 [G, N]."""
    return torch.exp(-alpha * spread.to(EXACT)).clamp(max=threshold).gather(1, draft.parents + 1)


def _products(tree: Firsts, parents: Tensor, u: Tensor) -> Tensor:
    """Products of the uniforms of a block's nodes, down to each, float64 [G, N]."""
    product = torch.ones(tree.child.shape, dtype=EXACT, device=u.device)
    for i in range(parents.shape[1]):
        above = product.gather(1, parents[:, i : i + 1] + 1)[:, 0]
        product[:, i + 1] = torch.where(tree.leads[:, i], above * u[:, i], 1.0)
    return product[:, 1:]
