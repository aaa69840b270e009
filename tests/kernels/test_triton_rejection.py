"""The target's distribution and the rejection rules in Triton against the torch reference: interpreted, or on a GPU."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from draw_oracle import scenario
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")
from triton_reference import DEVICE, moved, quick, reference  # noqa: F401  (a fixture of every test here)

from augury.kernels import block_triton, probs_triton, rejection_triton, standard_triton, verify_probs
from augury.verify import rejection
from augury.verify.sampling import Draws, SlotSampling
from augury.verify.tree import Draft, chain_parents
from augury.verify.verdict import finish, last_noise, uniforms


@quick(5)
@given(st.integers(0, 10**6), st.sampled_from([64, 256]))
def test_laws_are_the_references(seed: int, chunk: int) -> None:
    logits, draws, params = scenario(seed)
    case = logits.to(DEVICE), moved(draws), moved(params)
    want = verify_probs.probabilities(*case)
    assert probs_triton.probabilities(*case, chunk).tolist() == want.tolist()


def chains(seed: int, sampled: bool) -> tuple[Tensor, Draws, SlotSampling, Tensor, Draft]:
    """Three requests with chains of drafts that their targets like, one of them shorter, one not yet running."""
    logits, _, params = scenario(seed)
    random = np.random.default_rng(seed)
    groups, nodes, vocab = 3, 4, logits.shape[1]
    lines = groups * (nodes + 1)
    logits = torch.from_numpy(random.normal(size=(lines, vocab)) * 3).float()
    first = torch.arange(groups) * (nodes + 1)
    likely = logits.reshape(groups, nodes + 1, vocab)[:, :nodes]
    q = torch.softmax(likely + torch.from_numpy(random.normal(size=likely.shape)).float(), -1) if sampled else None
    if q is None:
        tokens = likely.argmax(-1)
    else:
        tokens = torch.multinomial(q.flatten(0, 1), 1, generator=torch.Generator().manual_seed(seed))[:, 0]
        tokens = tokens.view(groups, nodes)
    tokens[1, 2] = -1
    count = torch.tensor([nodes, nodes, int(random.integers(0, nodes + 1))])
    draft = Draft(tokens, chain_parents(groups, nodes), count, q, branching=False)
    own = torch.cat([torch.zeros(groups, 1, dtype=torch.int64), tokens], 1).flatten()
    depth = torch.arange(nodes + 1).repeat(groups)
    parents = torch.where(depth > 0, torch.arange(lines) - 1, -1)
    slots = torch.arange(groups).repeat_interleave(nodes + 1)
    draws = Draws(slots, 3 + depth, own, parents, torch.zeros(groups, 9, dtype=torch.int64), lines)
    if seed % 3 == 0:
        first[int(random.integers(groups))] = -1
    return logits, draws, params, first, draft


RULES = {"standard": (standard_triton.standard, rejection.standard), "block": (block_triton.block, rejection.block)}


@pytest.mark.parametrize("rule", RULES)
@quick(5)
@given(st.integers(0, 10**6), st.booleans())
@example(34, True)  # `block` accepts two drafts after one that fails, as in the next
@example(34, False)
def test_a_rule_decides_like_the_reference(rule: str, seed: int, sampled: bool) -> None:
    ours, theirs = RULES[rule]
    logits, draws, params, first, draft = chains(seed, sampled)
    logits, draws, params, draft, first = logits.to(DEVICE), moved(draws), moved(params), moved(draft), first.to(DEVICE)
    groups, nodes = draft.tokens.shape
    seeds, starts = params.seed, torch.full((groups,), 3, device=DEVICE)
    tests = uniforms(seeds, starts[:, None] + torch.arange(nodes, device=DEVICE), nodes)
    got = ours(logits, draws, params, first, draft, tests, seeds, starts, 128)
    lines = (first[:, None] + torch.arange(nodes + 1, device=DEVICE)).clamp(0, len(logits) - 1)
    probs = verify_probs.probabilities(logits, draws, params)[lines]
    verdict = theirs(probs, draft, first >= 0, tests)
    want = finish(verdict, last_noise(verdict, seeds, starts))
    for field in fields(want):
        assert getattr(got, field.name).tolist() == getattr(want, field.name).tolist(), field.name


def test_only_chains_are_known() -> None:
    chain = Draft.empty(1, 2)
    assert not rejection_triton.runs(chain)
    assert rejection_triton.runs(replace(chain, branching=False))
    assert not rejection_triton.runs(replace(chain, branching=False, distinct=True))
