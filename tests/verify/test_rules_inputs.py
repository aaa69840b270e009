"""The lossy rules, and every rule on borders, placeholders, broken laws, twins and wide vocabularies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rule_cases import BOTH, REPEATABLE, Judge, random_case, same
from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.rules import rates_for_length
from augury.verify import lossy, rejection
from augury.verify.rules import RULES
from augury.verify.tree import Draft, chain_parents, shape_of
from augury.verify.verdict import finish, last_noise, uniforms

pytestmark = pytest.mark.usefixtures("one_thread")
NAN = math.nan


def test_synthetic_rates() -> None:
    assert lossy.conditional_rates([0.9, 0.5, 0.2]) == pytest.approx([0.9, 0.5 / 0.9, 0.4])
    assert lossy.conditional_rates([1, 0.6, 0, 0]) == pytest.approx([1, 0.6, 0, 0])
    for length, tokens, rates in (
        (2.6, 3, [1, 0.6, 0]),
        (1, 3, [0, 0, 0]),
        (4, 3, [1, 1, 1]),
        (2, 3, [1, 0, 0]),
        (3.5, 4, [1, 1, 0.5, 0]),
    ):
        assert rates_for_length(length, tokens) == pytest.approx(rates)
    for length in (0.9, 4.1, NAN):
        with pytest.raises(ConfigError, match=r"synthetic_acceptance_length=\S+ must lie in \[1, 4\]"):
            rates_for_length(length, 3)


def chain_case(
    p: list[list[float]], tokens: list[int], u: list[float], q: list[list[float]] | None = None, **more: Any
) -> tuple[Tensor, Draft, Tensor, Tensor]:
    """One group, one chain (or other `parents`)."""
    nodes = len(tokens)
    probs = None if q is None else torch.tensor([q])
    draft = Draft(torch.tensor([tokens]), chain_parents(1, nodes), torch.tensor([nodes]), probs, **more)
    return torch.tensor([p]), draft, torch.tensor([True]), torch.tensor([u])


def test_synthetic_accepts_by_rate_alone() -> None:
    draft = Draft(torch.tensor([[0, 1, 0, 0]]), chain_parents(1, 4), torch.tensor([4]))
    p = torch.tensor([[[0.0, 1.0]] * 5])
    rates = torch.tensor([1.0, 1.0, 0.5, 0.0])
    go = torch.tensor([True])
    all_but_last = lossy.synthetic(p, draft, go, torch.tensor([[0.99, 0.99, 0.4, 0.0]]), rates)
    assert all_but_last.path.tolist() == [[0, 1, 2, -1]]
    assert lossy.synthetic(p, draft, go, torch.tensor([[0.99, 0.99, 0.5, 0.0]]), rates).accepted.tolist() == [2]
    assert lossy.synthetic(p, draft, go, torch.zeros(1, 4), torch.zeros(4)).accepted.tolist() == [0]
    # Beyond the rates given nothing is accepted, nor is a placeholder; a greedy target still says its own token.
    assert lossy.synthetic(p, draft, go, torch.zeros(1, 4), torch.ones(2)).accepted.tolist() == [2]
    holed = replace(draft, tokens=torch.tensor([[0, -1, 0, 0]]))
    verdict = lossy.synthetic(p, holed, go, torch.zeros(1, 4), torch.ones(4))
    assert verdict.tokens.tolist() == [[0, -1, -1, -1]]
    assert finish(verdict, torch.zeros(1, 2)).emitted.tolist() == [[0, 1, -1, -1, -1]]
    agreed = replace(draft, tokens=torch.tensor([[1, 1, 1, 1]]))
    refused = lossy.synthetic(p, agreed, go, torch.zeros(1, 4), torch.zeros(4))
    assert finish(refused, torch.zeros(1, 2)).emitted.tolist() == [[1, -1, -1, -1, -1]]


def test_synthetic_hits_its_rates_on_first_children_only() -> None:
    groups, rates = 20_000, rates_for_length(1.875, 3)
    parents = torch.tensor([[-1, -1, 0, 2, 1]]).repeat(groups, 1)
    draft = Draft(torch.zeros_like(parents), parents, torch.full((groups,), 5))
    p = torch.full((1, 1, 4), 0.25).expand(groups, 6, 4)
    u = uniforms(torch.arange(groups), shape_of(parents)[0], 5)
    go = torch.ones(groups, dtype=torch.bool)
    verdict = lossy.synthetic(p, draft, go, u, torch.tensor(lossy.conditional_rates(rates)))
    assert float(verdict.accepted.double().mean()) == pytest.approx(0.875, abs=1e-2)
    assert not (verdict.path == 1).any()


def naive_typical(p: np.ndarray, tokens: list[int], parents: list[int], eps: float, delta: float) -> list[int]:
    """Typical acceptance as one says it."""
    best: tuple[int, float, list[int]] = (0, 0.0, [])
    paths: dict[int, tuple[float, list[int]]] = {-1: (0.0, [])}
    for i, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if parent not in paths or token < 0:
            continue
        if (token, parent) in zip(tokens[:i], parents[:i], strict=True):  # a twin: the first one stands for both
            continue
        law = p[parent + 1]
        if law[token] > min(eps, delta * math.exp((law * np.log(law + 1e-5)).sum())):
            paths[i] = paths[parent][0] + math.log(law[token]), [*paths[parent][1], i]
            if (len(paths[i][1]), paths[i][0]) > best[:2]:
                best = len(paths[i][1]), *paths[i]
    return best[2]


@REPEATABLE
@given(st.integers(0, 10**6), st.sampled_from([(0.09, 0.3), (0.3, 0.09), (0.4, 0.9)]))
def test_typical_is_the_naive_one(seed: int, bars: tuple[float, float]) -> None:
    p, draft, active, u = random_case(seed)
    verdict = lossy.typical(p, draft, active, u, *bars)
    for g, n in enumerate(draft.count.tolist()):
        tokens, parents = draft.tokens[g, :n].tolist(), draft.parents[g, :n].tolist()
        path = naive_typical(p[g].numpy(), tokens, parents, *bars) if active[g] else []
        assert verdict.path[g].tolist() == path + [-1] * (len(verdict.path[g]) - len(path))
        if active[g]:
            assert torch.equal(verdict.probs[g], p[g, path[-1] + 1 if path else 0])


def test_typical_takes_the_longest_then_the_likeliest_path() -> None:
    flat = [0.25, 0.25, 0.25, 0.25]
    p = torch.tensor([[[0.5, 0.3, 0.2, 0.0], flat, [0.1, 0.2, 0.3, 0.4], flat, flat, flat]])
    draft = Draft(torch.tensor([[0, 1, 2, 3, 3]]), torch.tensor([[-1, -1, 0, 1, -1]]), torch.tensor([5]))
    verdict = lossy.typical(p, draft, torch.tensor([True]), torch.zeros(1, 5))
    assert verdict.path.tolist() == [
        [0, 2, -1, -1, -1]
    ]  # .5 * .25 beats .3 * .4, and token 3 of the root has no chance


def test_entropy_lowers_the_bar() -> None:
    p, draft, active, u = chain_case([[0.2, 0.8], [0.5, 0.5]], [0], [0.45], [[0.5, 0.5]])
    assert rejection.standard(p, draft, active, u).accepted.tolist() == [0]
    spread = lossy.raw_entropy(torch.zeros(2, 2))[None]
    torch.testing.assert_close(spread, torch.full((1, 2), math.log(2)))
    assert lossy.entropy(p, draft, active, u, spread).accepted.tolist() == [1]  # .45 * .5**.4 = .34 < .4
    assert lossy.entropy(p, draft, active, u, spread * 0).accepted.tolist() == [0]  # .45 * .95 = .43
    assert lossy.raw_entropy(torch.tensor([[NAN, 0.0, 0.0], [NAN] * 3])).tolist() == pytest.approx([math.log(2), 0])


def test_borders_belong_to_refusal() -> None:
    """u < p / q, so that a token without a chance has none at u = 0, and 1/2 is not accepted at 1/2."""
    law = [[0.25, 0.75], [0.5, 0.5]]
    for u, accepted in ((0.5, 0), (0.4999, 1)):
        case = chain_case(law, [0], [u], [[0.5, 0.5]])
        assert [rule(*case).accepted.item() for rule in (rejection.standard, rejection.block)] == [accepted] * 2
    for q in (None, [[0.5, 0.5]]):
        case = chain_case([[0.0, 1.0], [0.5, 0.5]], [0], [0.0], q)
        for rule in (rejection.standard, rejection.block, lossy.ascend_block, lossy.typical):
            assert rule(*case).accepted.item() == 0
            assert rule(*case).probs.tolist() == [[0, 1]]


@BOTH
def test_a_placeholder_ends_a_chain_with_the_targets_own_law(rule: Judge) -> None:
    law = [[0.5, 0.5], [0.25, 0.75], [1.0, 0.0], [1.0, 0.0]]
    for q in (None, [[0.5, 0.5]] * 3):
        verdict = rule(*chain_case(law, [1, -1, 0], [0.1, 0.0, 0.0], q))
        assert verdict.path.tolist() == [[0, -1, -1]]
        assert verdict.probs.tolist() == [[0.25, 0.75]]


@BOTH
def test_impossible_drafts_and_broken_laws(rule: Judge) -> None:
    # The drafter says it could not have drawn 0: refused, though the target likes it.
    verdict = rule(*chain_case([[0.9, 0.1], [0.5, 0.5]], [0], [0.0], [[0.0, 1.0]]))
    assert verdict.accepted.item() == 0
    assert verdict.probs.tolist() == [[1, 0]]
    # NaN is no chance, wherever it stands.
    verdict = rule(*chain_case([[NAN, 1.0, NAN], [0.5, 0.5, 0.0]], [0], [0.0], [[0.5, NAN, 0.5]]))
    assert verdict.accepted.item() == 0
    assert verdict.probs.tolist() == [[0, 1, 0]]
    assert rule(*chain_case([[0.5, 0.5], [1.0, 0.0]], [0], [0.0], [[NAN, NAN]])).accepted.item() == 0
    # A target that says nothing: no draft holds, and token 0 comes out, as from draw.
    verdict = rule(*chain_case([[NAN] * 3] * 2, [1], [0.0]))
    assert verdict.accepted.item() == 0
    assert finish(verdict, torch.randn(1, 3)).emitted.tolist() == [[0, -1]]


@BOTH
def test_twins_fare_as_one(rule: Judge) -> None:
    p, draft, active, _ = chain_case([[0.5, 0.25, 0.25]] + [[1.0, 0.0, 0.0]] * 3, [1, 1, 1], [0.0] * 3)
    draft.parents[:] = -1
    for u, path in (([0.2, 0.0, 0.0], 0), ([0.3, 0.0, 0.0], -1)):
        verdict = rule(p, draft, active, torch.tensor([u]))
        assert verdict.path[0, 0].item() == path
    torch.testing.assert_close(verdict.probs, torch.tensor([[2 / 3, 0, 1 / 3]]))


@BOTH
@pytest.mark.parametrize("distinct", [False, True])
def test_vocabularies_may_differ(rule: Judge, distinct: bool) -> None:
    """A drafter with more tokens, or fewer, is one that gives the others no chance, or is given none."""
    p, draft, active, u = random_case(3, depth=4)
    draft.parents = torch.tensor([[-1, -1, 0, 0]]).expand(5, 4)
    draft.distinct = distinct
    draft.probs = torch.rand(5, 4, p.shape[2] + 2, dtype=torch.float64)
    draft.probs /= draft.probs.sum(-1, keepdim=True)
    padded_p = torch.nn.functional.pad(p, (0, 2))
    for tokens in (draft.tokens, torch.full_like(draft.tokens, p.shape[2] + 1)):
        own = replace(draft, tokens=tokens)
        want, got = rule(padded_p, own, active, u), rule(p, own, active, u)
        assert torch.equal(want.path, got.path)
        torch.testing.assert_close(want.probs[active, : p.shape[2]], got.probs[active])
        assert not want.probs[:, p.shape[2] :].any()
    narrow = replace(draft, probs=draft.probs[..., :2] / draft.probs[..., :2].sum(-1, keepdim=True))
    same(
        rule(p, replace(narrow, probs=torch.nn.functional.pad(narrow.probs, (0, p.shape[2] - 2))), active, u),
        rule(p, narrow, active, u),
    )


def test_every_rule_takes_an_empty_draft_and_a_full_one() -> None:
    more: dict[str, Callable[[int], dict[str, Tensor]]] = {
        "entropy": lambda nodes: {"spread": torch.zeros(2, nodes + 1)},
        "synthetic": lambda nodes: {"rates": torch.ones(63)},
    }
    go = torch.tensor([True, False])
    for (name, rule), nodes in itertools.product(RULES.items(), (0, 1, 63)):
        if rule.judge is None:
            continue
        draft = Draft(torch.zeros(2, nodes, dtype=torch.int64), chain_parents(2, nodes), torch.full((2,), nodes))
        p = torch.tensor([1.0, 0.0]).expand(2, nodes + 1, 2)
        verdict = rule.judge(p, draft, go, torch.full((2, nodes), 0.5), **more.get(name, lambda n: {})(nodes))
        outcome = finish(verdict, torch.zeros(2, 2))
        assert outcome.emitted.tolist() == [[0] * (nodes + 1), [-1] * (nodes + 1)], name
        assert outcome.emitted_count.tolist() == [nodes + 1, 0]
        assert outcome.accepted.tolist() == [nodes, 0]


@BOTH
@pytest.mark.parametrize("vocab", [151_936, 262_144])
def test_wide_vocabularies(rule: Judge, vocab: int) -> None:
    random = torch.Generator().manual_seed(vocab)
    # In float64: float32's own softmax is off by 1e-5 in rows this wide.
    p = torch.softmax(torch.randn(2, 4, vocab, generator=random).double() * 3, -1).float()
    q = torch.softmax(p[:, :3].double().log() * 0.9, -1).float()
    tokens = torch.multinomial(q.flatten(0, 1), 1, generator=random).view(2, 3)
    draft = Draft(tokens, torch.tensor([[-1, 0, 0]] * 2), torch.tensor([3, 3]), q, distinct=True)
    verdict = rule(p, draft, torch.tensor([True, True]), torch.tensor([[0.2, 0.99999, 0.5]] * 2))
    assert verdict.probs.shape == (2, vocab)
    torch.testing.assert_close(verdict.probs.sum(1), torch.ones(2), atol=1e-5, rtol=0)
    outcome = finish(verdict, last_noise(verdict, torch.tensor([1, 2]), torch.tensor([5, 6])))
    assert bool((outcome.emitted < vocab).all())
