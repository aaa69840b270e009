"""Random drafts and laws for the tests of the rules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import Tensor

from augury.verify import lossy, rejection
from augury.verify.tree import Draft
from augury.verify.verdict import Verdict

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=60)
Judge = Callable[[Tensor, Draft, Tensor, Tensor], Verdict]
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
    torch.testing.assert_close(a.law[a.active], b.law[b.active], atol=1e-12, rtol=0)


def entropy(p: Tensor, draft: Draft, active: Tensor, u: Tensor) -> Verdict:
    return lossy.entropy(p, draft, active, u, torch.rand(p.shape[:2]) * 3)
