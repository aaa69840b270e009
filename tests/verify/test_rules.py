"""The rejection rules: reductions, vLLM's vectors, greedy requests, broken inputs, noise, and the law of real draws."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from draw_oracle import sampling
from hypothesis import example, given
from hypothesis import strategies as st
from rule_cases import BOTH, REPEATABLE, Judge, entropy, random_case, same, sampled_step
from torch import Tensor

from augury.kernels import verify, verify_probs, verify_probs_numba
from augury.verify import lossy, noise, rejection
from augury.verify.rules import RULES
from augury.verify.sampling import Draws, SlotSampling
from augury.verify.tree import Draft, chain_parents
from augury.verify.verdict import Verdict, finish, last_noise, uniforms

pytestmark = pytest.mark.usefixtures("one_thread")


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
        torch.testing.assert_close(padded.probs[active], plain.probs[active], atol=1e-12, rtol=0)


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
                draft,
                tokens=draft.tokens[g : g + 1],
                parents=draft.parents[g : g + 1],
                count=draft.count[g : g + 1],
                probs=probs,
            )
            alone = rule(p[g : g + 1], own, active[g : g + 1], u[g : g + 1])
            assert torch.equal(alone.path[0], whole.path[g])
            assert torch.equal(alone.probs[0], whole.probs[g]) or not active[g]


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
        torch.arange(groups).repeat_interleave(nodes + 1),
        (1 + torch.arange(nodes + 1)).repeat(groups),
        torch.cat([last, draft.tokens], 1).flatten(),
        torch.where(lines > lines[:, :1], lines - 1, -1).flatten(),
        torch.cat([last, torch.zeros(groups, nodes, dtype=torch.int64)], 1),
        lines.numel(),
    )
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


@BOTH
@pytest.mark.parametrize(("shape", "distinct"), [("chain", False), ("siblings", False), ("siblings", True)])
def test_real_draws_follow_the_law_of_a_wide_row(rule: Judge, shape: str, distinct: bool) -> None:
    """Tokens of like probability are counted together, in 102 cells: a row four times as wide has as many."""
    assert sampled_step(rule, 1024, 2048, SHAPES[shape], distinct) < 1


@BOTH
@pytest.mark.parametrize("shape", SHAPES)
def test_real_draws_follow_the_law_of_a_narrow_row(rule: Judge, shape: str) -> None:
    assert sampled_step(rule, 8, 100_000, SHAPES[shape]) < 1


def test_the_table_of_rules() -> None:
    assert [name for name, rule in RULES.items() if rule.lossless] == ["coupled", "standard", "block"]
    for rule in RULES.values():
        assert rule.help.endswith(".")
        assert rule.lossless != rule.help.startswith("Lossy")
