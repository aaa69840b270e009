"""The rejection rules: reductions, vLLM's vectors, greedy requests, broken inputs, noise, and the law of real draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from draw_oracle import sampling
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.synthetic import rates_for_length
from augury.kernels import verify, verify_probs, verify_probs_numba
from augury.verify import lossy, noise, rejection
from augury.verify.rules import RULES
from augury.verify.sampling import Draws, SlotSampling
from augury.verify.tree import Draft, chain_parents, shape_of
from augury.verify.verdict import Verdict, finish, last_noise, uniforms

pytestmark = pytest.mark.usefixtures("one_thread")

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=60)
Judge = Callable[[Tensor, Draft, Tensor, Tensor], Verdict]
BOTH = pytest.mark.parametrize("rule", [rejection.standard, rejection.block])
NAN = math.nan


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


@REPEATABLE
@given(st.integers(0, 10**6))
def test_block_of_one_is_standard(seed: int) -> None:
    case = random_case(seed, depth=1)
    same(rejection.block(*case), rejection.standard(*case))


@REPEATABLE
@given(st.integers(0, 10**6))
def test_entropy_with_no_slack_is_standard(seed: int) -> None:
    p, draft, active, u = random_case(seed)
    spread = torch.rand(p.shape[:2])
    same(lossy.entropy(p, draft, active, u, spread, threshold=1.0, alpha=0.0), rejection.standard(p, draft, active, u))


@REPEATABLE
@given(st.integers(0, 10**6))
def test_a_tree_of_only_children_is_a_chain(seed: int) -> None:
    p, draft, active, u = random_case(seed, chain=True)
    for rule in (rejection.standard, rejection.block, lossy.ascend_block):
        same(rule(p, draft, active, u), rule(p, replace(draft, branching=False), active, u))
    # Behind a placeholder, children of the root that no one is offered change nothing.
    nodes = draft.tokens.shape[1]
    more = torch.nn.functional.pad(draft.tokens, (nodes, 0), value=-1)
    parents = torch.cat(
        [torch.full_like(draft.parents, -1), torch.where(draft.parents < 0, -1, draft.parents + nodes)], 1
    )
    probs = None if draft.probs is None else torch.cat([draft.probs, draft.probs], 1)
    wide = replace(draft, tokens=more, parents=parents, count=draft.count + nodes, probs=probs)
    for rule in (rejection.standard, rejection.block):
        plain = rule(p, draft, active, u)
        padded = rule(torch.cat([p[:, :1], p[:, 1:], p[:, 1:]], 1), wide, active, torch.cat([u, u], 1))
        assert torch.equal(padded.tokens[:, :nodes], plain.tokens)
        torch.testing.assert_close(padded.law[active], plain.law[active], atol=1e-12, rtol=0)


@REPEATABLE
@given(st.integers(0, 10**6))
def test_ascend_block_of_short_drafts_is_standard(seed: int) -> None:
    case = random_case(seed, depth=2)
    same(lossy.ascend_block(*case), rejection.standard(*case))


@REPEATABLE
@given(st.integers(0, 10**6))
def test_groups_do_not_meet(seed: int) -> None:
    p, draft, active, u = random_case(seed)
    for rule in (rejection.standard, rejection.block, lossy.typical, lossy.ascend_block):
        whole = rule(p, draft, active, u)
        for g in range(len(p)):
            probs = None if draft.probs is None else draft.probs[g : g + 1]
            own = replace(
                draft, tokens=draft.tokens[g : g + 1], parents=draft.parents[g : g + 1],
                count=draft.count[g : g + 1], probs=probs,
            )  # fmt: skip
            alone = rule(p[g : g + 1], own, active[g : g + 1], u[g : g + 1])
            assert torch.equal(alone.path[0], whole.path[g])
            assert torch.equal(alone.law[0], whole.law[g]) or not active[g]


def entropy(p: Tensor, draft: Draft, active: Tensor, u: Tensor) -> Verdict:
    return lossy.entropy(p, draft, active, u, torch.rand(p.shape[:2]) * 3)


@pytest.mark.parametrize("rule", [rejection.standard, rejection.block, lossy.typical, entropy, lossy.ascend_block])
@REPEATABLE
@example(seed=132)
@given(seed=st.integers(0, 10**6))
def test_greedy_requests_get_greedy_text(rule: Judge, seed: int) -> None:
    """Whatever the drafter's law and the uniforms, in both precisions, the tree is walked as by the target's argmax."""
    p, draft, active, u = random_case(seed)
    choice = p.argmax(2)
    first = torch.where(active, torch.arange(len(p)) * p.shape[1], -1)
    walked = verify.walk(choice.flatten(), first, draft)
    for dtype in (torch.float32, torch.float64):
        certain = torch.nn.functional.one_hot(choice, p.shape[2]).to(dtype)
        uniform = u.to(dtype).clamp(max=noise.BELOW_ONE)
        verdict = rule(certain, draft, active, uniform)
        outcome = finish(verdict, torch.randn(p.shape[0], p.shape[2]))
        if rule is lossy.typical:  # takes the longest path: one behind a later twin, if need be
            beginning = torch.where(walked.emitted >= 0, outcome.emitted, -1)
            assert torch.equal(beginning, walked.emitted) and (outcome.emitted_count >= walked.emitted_count).all()
            continue
        assert torch.equal(outcome.emitted, walked.emitted)
        assert torch.equal(outcome.emitted_count, walked.emitted_count)
        assert torch.equal(outcome.path, walked.path)


def padded(rows: list[list[int]], width: int, blank: int) -> Tensor:
    return torch.tensor([row + [blank] * (width - len(row)) for row in rows], dtype=torch.int64).view(len(rows), width)


def emitted(
    rule: str, drafts: list[list[int]], wanted: list[list[int]], params: SlotSampling, known: list[int], rival: int
) -> list[list[int]]:
    """Greedy chains through the whole of it: the target wants some tokens most and `rival` nearly as much."""
    groups, nodes, vocab = len(drafts), max(map(len, drafts)), 20
    draft = Draft(padded(drafts, nodes, 0), chain_parents(groups, nodes), torch.tensor([len(d) for d in drafts]))
    logits = torch.full((groups, nodes + 1, vocab), -100.0)
    logits[:, :, rival] = 99
    logits.scatter_(2, padded(wanted, nodes + 1, 0)[:, :, None], 100.0)
    lines = torch.arange(groups * (nodes + 1)).view(groups, nodes + 1)
    last = torch.tensor(known)[:, None]
    draws = Draws(
        torch.arange(groups).repeat_interleave(nodes + 1), (1 + torch.arange(nodes + 1)).repeat(groups),
        torch.cat([last, draft.tokens], 1).flatten(), torch.where(lines > lines[:, :1], lines - 1, -1).flatten(),
        torch.cat([last, torch.zeros(groups, nodes, dtype=torch.int64)], 1), lines.numel(),
    )  # fmt: skip
    flat = logits.flatten(0, 1)
    if rule == "coupled":
        outcome = verify.walk(verify.draw(flat, draws, params), lines[:, 0], draft)
    else:
        p = verify_probs_numba.probabilities(flat, draws, params).view(logits.shape)
        assert torch.equal(p, verify_probs.probabilities(flat, draws, params).view(logits.shape))
        u = uniforms(params.seed, draws.positions.view(groups, -1)[:, :nodes], nodes)
        verdict = getattr(rejection, rule)(p, draft, torch.ones(groups, dtype=torch.bool), u)
        outcome = finish(verdict, last_noise(verdict, params.seed, torch.ones(groups, dtype=torch.int64)))
    return [row[:n] for row, n in zip(outcome.emitted.tolist(), outcome.emitted_count.tolist(), strict=True)]


ALL = pytest.mark.parametrize("rule", ["coupled", "standard", "block"])
GREEDY = [  # vLLM's own vectors: drafts, the target's choices, the output
    ([[1, 2, 3]], [[1, 2, 3, 4]], [[1, 2, 3, 4]]),
    ([[1, 2, 3]], [[1, 5, 3, 4]], [[1, 5]]),
    ([[1, 2], [3]], [[1, 2, 5], [3, 4]], [[1, 2, 5], [3, 4]]),
    ([[1]], [[1, 2]], [[1, 2]]),
    ([[1]], [[2, 3]], [[2]]),
    ([[1, 2], [3, 4]], [[1, 5, 6], [3, 4, 7]], [[1, 5], [3, 4, 7]]),
    ([[]], [[5]], [[5]]),
    ([[1, 2, 3], [4, 5, 6]], [[1, 2, 7, 6], [4, 8, 6, 9]], [[1, 2, 7], [4, 8]]),
    ([[1, -1, 3]], [[1, 2, 3, 4]], [[1, 2]]),
]


@ALL
@pytest.mark.parametrize(("drafts", "wanted", "output"), GREEDY)
def test_greedy_vectors(rule: str, drafts: list[list[int]], wanted: list[list[int]], output: list[list[int]]) -> None:
    assert emitted(rule, drafts, wanted, sampling(len(drafts)), [0] * len(drafts), 15) == output


@ALL
def test_frequency_penalty_vector(rule: str) -> None:
    counts = torch.zeros(3, 20, dtype=torch.int32)
    params = sampling(3, penalized=True, frequency=torch.tensor([1.5, 1.5, 0.7]), counts=counts)
    params.in_prompt = counts.bool()
    text = emitted(rule, [[1, 1, 1], [], [1, 1, 1]], [[1, 1, 1, 1], [7], [1, 1, 1, 1]], params, [2, 3, 4], 15)
    assert text == [[1, 15], [7], [1, 1, 15]]


@ALL
def test_bad_words_vector(rule: str) -> None:
    params = sampling(3, bad_words=torch.full((3, 1, 1), 2))
    wanted = [[1, 2, 3, 4], [1, 15, 3, 4], [1, 2, 3, 4]]
    text = emitted(rule, [[1, 2, 3], [1, 15, 3], [1, 2, 3]], wanted, params, [0, 0, 0], 15)
    assert text == [[1, 15], [1, 15, 3, 4], [1, 15]]


@ALL
def test_allowed_tokens_vector(rule: str) -> None:
    bias = torch.zeros(3, 20)
    bias[:, :5] = -math.inf
    params = sampling(3, biased=True, bias=bias)
    wanted = [[1, 2, 10, 5], [10, 5, 10, 5], [7, 10, 12, 5]]
    text = emitted(rule, [[1, 2, 10], [10, 5, 3], [7, 10, 12]], wanted, params, [0, 0, 0], 15)
    assert text == [[15], [10, 5, 10], [7, 10, 12, 5]]


def test_synthetic_rates() -> None:
    assert lossy.conditional_rates([0.9, 0.5, 0.2]) == pytest.approx([0.9, 0.5 / 0.9, 0.4])
    assert lossy.conditional_rates([1, 0.6, 0, 0]) == pytest.approx([1, 0.6, 0, 0])
    for length, tokens, rates in (
        (2.6, 3, [1, 0.6, 0]), (1, 3, [0, 0, 0]), (4, 3, [1, 1, 1]), (2, 3, [1, 0, 0]), (3.5, 4, [1, 1, 0.5, 0]),
    ):  # fmt: skip
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
            assert torch.equal(verdict.law[g], p[g, path[-1] + 1 if path else 0])


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
            assert rule(*case).law.tolist() == [[0, 1]]


@BOTH
def test_a_placeholder_ends_a_chain_with_the_targets_own_law(rule: Judge) -> None:
    law = [[0.5, 0.5], [0.25, 0.75], [1.0, 0.0], [1.0, 0.0]]
    for q in (None, [[0.5, 0.5]] * 3):
        verdict = rule(*chain_case(law, [1, -1, 0], [0.1, 0.0, 0.0], q))
        assert verdict.path.tolist() == [[0, -1, -1]]
        assert verdict.law.tolist() == [[0.25, 0.75]]


@BOTH
def test_impossible_drafts_and_broken_laws(rule: Judge) -> None:
    # The drafter says it could not have drawn 0: refused, though the target likes it.
    verdict = rule(*chain_case([[0.9, 0.1], [0.5, 0.5]], [0], [0.0], [[0.0, 1.0]]))
    assert verdict.accepted.item() == 0
    assert verdict.law.tolist() == [[1, 0]]
    # NaN is no chance, wherever it stands.
    verdict = rule(*chain_case([[NAN, 1.0, NAN], [0.5, 0.5, 0.0]], [0], [0.0], [[0.5, NAN, 0.5]]))
    assert verdict.accepted.item() == 0
    assert verdict.law.tolist() == [[0, 1, 0]]
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
    torch.testing.assert_close(verdict.law, torch.tensor([[2 / 3, 0, 1 / 3]]))


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
        torch.testing.assert_close(want.law[active, : p.shape[2]], got.law[active])
        assert not want.law[:, p.shape[2] :].any()
    narrow = replace(draft, probs=draft.probs[..., :2] / draft.probs[..., :2].sum(-1, keepdim=True))
    same(rule(p, replace(narrow, probs=torch.nn.functional.pad(narrow.probs, (0, p.shape[2] - 2))), active, u),
         rule(p, narrow, active, u))  # fmt: skip


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
    assert verdict.law.shape == (2, vocab)
    torch.testing.assert_close(verdict.law.sum(1), torch.ones(2), atol=1e-5, rtol=0)
    outcome = finish(verdict, last_noise(verdict, torch.tensor([1, 2]), torch.tensor([5, 6])))
    assert bool((outcome.emitted < vocab).all())


def test_uniforms_depend_on_seed_position_node_and_depth_alone() -> None:
    seeds, nodes = torch.tensor([3, -4, 2**40]), 9
    positions = torch.tensor([[7, 8, 8, 9, 9, 9, 10, 11, 12], [0, 1, 2, 3, 4, 5, 6, 7, 8], [2**33] * 9])
    u = uniforms(seeds, positions, nodes)
    assert u.dtype == torch.float32
    assert 0 < float(u.min()) <= float(u.max()) < 1
    assert len(u.unique()) == u.numel()
    for g in range(3):
        assert torch.equal(uniforms(seeds[g : g + 1], positions[g : g + 1, :4], 4)[0], u[g, :4])
    # A first child has word 0 of its position: the stream is ACCEPT's, and no other's.
    words = [noise.uniform(noise.words(seeds, positions[:, 0], purpose, 8)) for purpose in range(4)]
    assert torch.equal(words[noise.ACCEPT][:, 0], u[:, 0])
    assert len(torch.cat(words).unique()) == 4 * 3 * 8
    # The next step meets a node of the same number at the same position, but higher in its tree.
    later = uniforms(seeds[:1], torch.tensor([[8, 8, 8]]), 3)
    assert later[0, 1] != u[0, 1]
    assert later[0, 2] != u[0, 2]


def test_uniforms_are_uniform() -> None:
    u = uniforms(torch.arange(20_000), torch.tensor([[5, 6, 6]]).expand(20_000, 3), 3).double()
    seen = torch.stack([torch.histc(u[:, i], 10, 0, 1) for i in range(3)])
    assert float(((seen - 2000) ** 2 / 2000).sum()) < 27 + 4 * math.sqrt(54)
    assert float(torch.corrcoef(u.T).fill_diagonal_(0).abs().max()) < 0.03


def test_finish_draws_the_lowest_of_equals_and_never_the_impossible() -> None:
    blank = torch.full((3, 1), -1)
    law = torch.tensor([[0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 0.0, 2.0], [0.25, 0.25, 0.25, 0.25]])
    verdict = Verdict(blank, torch.zeros(3, dtype=torch.int64), law, blank, torch.tensor([True, True, False]))
    noisy = torch.tensor([[22.0, 1.0, 1.0, 22.0]]).expand(3, 4)
    outcome = finish(verdict, noisy)
    assert outcome.emitted.tolist() == [[1, -1], [3, -1], [-1, -1]]
    assert outcome.emitted_count.tolist() == [1, 1, 0]


SHAPES = {"chain": [-1, 0], "siblings": [-1, -1], "tree": [-1, -1, 1, 0]}
Purposes = tuple[int, int]  # of the draft's noise and the last token's
USUAL: Purposes = (noise.DRAFT, noise.RESAMPLE)


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


@BOTH
@pytest.mark.parametrize(("shape", "distinct"), [("chain", False), ("siblings", False), ("siblings", True)])
def test_real_draws_follow_the_law_of_a_wide_row(rule: Judge, shape: str, distinct: bool) -> None:
    assert sampled_step(rule, 4096, 2048, SHAPES[shape], distinct) < 1


@BOTH
@pytest.mark.parametrize("shape", SHAPES)
def test_real_draws_follow_the_law_of_a_narrow_row(rule: Judge, shape: str) -> None:
    assert sampled_step(rule, 8, 100_000, SHAPES[shape]) < 1


def test_the_table_of_rules() -> None:
    assert [name for name, rule in RULES.items() if rule.lossless] == ["coupled", "standard", "block"]
    for rule in RULES.values():
        assert rule.help.endswith(".")
        assert rule.lossless != rule.help.startswith("Lossy")
