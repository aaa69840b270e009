"""Random drafts and laws for the tests of the rules, and a step of many requests with real noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import Tensor

from augury.verify import lossy, noise, rejection
from augury.verify.tree import Draft, shape_of
from augury.verify.verdict import Verdict, finish, uniforms

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=60)
Judge = Callable[[Tensor, Draft, Tensor, Tensor], Verdict]
Purposes = tuple[int, int]  # of the draft's noise and the last token's
USUAL: Purposes = (noise.DRAFT, noise.RESAMPLE)
BOTH = pytest.mark.parametrize("rule", [rejection.standard, rejection.block])


def random_case(seed: int, chain: bool = False, depth: int = 0) -> tuple[Tensor, Draft, Tensor, Tensor]:
    """Laws with zeros, trees with twins and placeholders, some groups inactive."""
    random = np.random.default_rng(seed)
    groups, nodes, vocab = 5, depth or int(random.integers(1, 8)), int(random.integers(2, 6))

    def laws(rows: int) -> Tensor:
        weight = torch.from_numpy(random.integers(0, 4, (groups, rows, vocab)) + 1e-9)
        return weight / weight.sum(-1, keepdim=True)

    draft = Draft.empty(groups, nodes)
    draft.tokens = torch.from_numpy(random.integers(-1 if random.random() < 0.3 else 0, vocab, (groups, nodes)))
    draft.count = torch.from_numpy(random.integers(0, nodes + 1, groups)) if not depth else draft.count + nodes
    draft.distinct, draft.probs = bool(random.integers(2)), laws(nodes) if random.random() < 0.6 else None
    if not chain:
        for i in range(nodes):
            draft.parents[:, i] = torch.from_numpy(random.integers(-1, i, groups))
    active = torch.from_numpy(random.random(groups) < 0.8)
    return laws(nodes + 1), draft, active, torch.from_numpy(random.random((groups, nodes)))


def same(a: Verdict, b: Verdict) -> None:
    assert torch.equal(a.path, b.path)
    assert torch.equal(a.accepted, b.accepted)
    assert torch.equal(a.tokens, b.tokens)
    torch.testing.assert_close(a.probs[a.active], b.probs[b.active], atol=1e-12, rtol=0)


def entropy(p: Tensor, draft: Draft, active: Tensor, u: Tensor) -> Verdict:
    return lossy.entropy(p, draft, active, u, torch.rand(p.shape[:2]) * 3)


def sampled_step(
    rule: Judge, vocab: int, trials: int, parents: list[int], distinct: bool = False, purposes: Purposes = USUAL
) -> float:
    """Chi-square over its bound for first tokens, everything drawn from Philox; over 1 is too much.

    One step of many requests, whose target and drafter have no history; drafts are drawn by Gumbel-max, each node with
    the noise of a position of its own.
    """
    random = torch.Generator().manual_seed(vocab)
    target = torch.softmax(torch.randn(vocab, generator=random), 0)
    q = torch.softmax(torch.randn(vocab, generator=random), 0)
    nodes, seen = len(parents), torch.zeros(vocab, dtype=torch.int64)
    shape = torch.tensor([parents])
    for seeds in torch.arange(trials).split(max(1, (1 << 21) // vocab)):
        groups = len(seeds)
        tokens = torch.zeros(groups, nodes, dtype=torch.int64)
        for i in range(nodes):
            scores = q.log() + noise.gumbel(seeds, torch.full_like(seeds, 100 + i), purposes[0], vocab)
            if distinct:
                earlier = [j for j in range(i) if parents[j] == parents[i]]
                scores.scatter_(1, tokens[:, earlier], -math.inf)
            tokens[:, i] = scores.argmax(1)
        parent = shape.expand(groups, nodes)
        draft = Draft(tokens, parent, torch.full((groups,), nodes), q.expand(groups, nodes, vocab), distinct)
        u = uniforms(seeds, 99 + shape_of(parent)[0], nodes)
        verdict = rule(target.expand(groups, nodes + 1, vocab), draft, torch.ones(groups, dtype=torch.bool), u)
        last = noise.gumbel(seeds, 100 + verdict.accepted, purposes[1], vocab)
        seen += torch.bincount(finish(verdict, last).emitted[:, 0], minlength=vocab)
    order = target.argsort()
    bins = torch.zeros(vocab, dtype=torch.int64)
    bins[order] = torch.arange(vocab) * min(vocab, trials // 20) // vocab  # tokens of like probability together
    expected = torch.zeros(int(bins.max()) + 1, dtype=torch.float64).index_add(0, bins, target.double()) * trials
    counted = torch.zeros_like(expected).index_add(0, bins, seen.double())
    freedom = len(expected) - 1
    return float(((counted - expected) ** 2 / expected).sum()) / (freedom + 10 * math.sqrt(2 * freedom))
