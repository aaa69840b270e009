"""The token drawn at a line: both faces against a slow oracle in float64, and against the law they must follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from draw_oracle import NEVER, Oracle, chain, roots, sampling, scenario
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from augury.kernels import verify, verify_numba, verify_numba_race
from augury.verify import noise
from augury.verify.logprobs import score
from augury.verify.sampling import Draws, SlotSampling

pytestmark = pytest.mark.usefixtures("one_thread")

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=50)  # the first call compiles
FACES = pytest.mark.parametrize("draw", [verify.draw, verify_numba.draw], ids=["torch", "numba"])
Draw = Callable[[Tensor, Draws, SlotSampling], Tensor]


@REPEATABLE
@given(st.integers(0, 10**6))
def test_both_faces_draw_the_oracles_token(seed: int) -> None:
    logits, draws, params = scenario(seed)
    for draw in (verify.draw, verify_numba.draw):
        for line, token in enumerate(draw(logits, draws, params).tolist()):
            Oracle(logits, draws, params, line).check(token)


def test_faces_differ_almost_never() -> None:
    pairs = [(verify.draw(*case).tolist(), verify_numba.draw(*case).tolist()) for case in map(scenario, range(150))]
    lines = sum(len(a) for a, _ in pairs)
    different = sum(x != y for a, b in pairs for x, y in zip(a, b, strict=True))
    assert lines > 1500
    assert different <= 2


@FACES
@REPEATABLE
@given(st.integers(0, 10**6))
def test_a_token_depends_on_its_own_path_only(draw: Draw, seed: int) -> None:
    logits, draws, params = scenario(seed)
    tokens = draw(logits, draws, params)
    line = seed % len(tokens)
    path = [line]
    while int(draws.parents[path[0]]) >= 0:
        path.insert(0, int(draws.parents[path[0]]))
    for padding in (0, 3):
        rows = torch.tensor([*path, *[0] * padding])
        alone = replace(
            draws, slots=draws.slots[rows], positions=draws.positions[rows], tokens=draws.tokens[rows],
            parents=torch.tensor([*range(-1, len(path) - 1), *[-1] * padding]), count=len(path),
        )  # fmt: skip
        shorter = logits[rows]
        shorter[len(path) :] = math.nan
        assert draw(shorter, alone, params)[len(path) - 1] == tokens[line]


def test_threads_draw_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [scenario(seed) for seed in range(20)]
    plain = roots(9, plain=True, greedy=True)
    cases.append((torch.randn(9, 200, generator=torch.Generator().manual_seed(0)), plain, sampling()))
    alone = [verify_numba.draw(*case) for case in cases]
    monkeypatch.setattr(verify_numba, "PARALLEL_FROM", 0)
    assert all(torch.equal(verify_numba.draw(*case), want) for case, want in zip(cases, alone, strict=True))


LAWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.15},
    "all": {"temperature": 1.3, "top_k": 8, "top_p": 0.9, "min_p": 0.05},
    "penalties": {"penalized": True, "repetition": 1.4, "presence": 0.3, "frequency": 0.2},
}


@FACES
@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_the_law(draw: Draw, name: str) -> None:
    vocab, count = 12, 5000
    params = sampling(**{"temperature": 1.0, "seed": 5, **LAWS[name]})
    params.counts = torch.arange(vocab).remainder(3)[None].int()
    params.in_prompt = (torch.arange(vocab) == 4)[None]
    row = torch.randn(vocab, generator=torch.Generator().manual_seed(3)) * 1.5
    logits, draws = row.expand(count, vocab).contiguous(), roots(count, plain=not params.penalized[0])
    seen = np.bincount(draw(logits, draws, params).numpy(), minlength=vocab)
    expected = Oracle(logits, draws, params, 0).law() * count
    assert not seen[expected == 0].any()
    live = expected > 0
    chi_square = ((seen - expected)[live] ** 2 / expected[live]).sum()
    freedom = live.sum() - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


@FACES
def test_draws_follow_the_law_of_a_wide_row(draw: Draw) -> None:
    vocab, count, wide = 1500, 800, 150
    row = torch.randn(vocab, generator=torch.Generator().manual_seed(4))
    params, draws = sampling(temperature=1.0), roots(count, plain=True)
    tokens = draw(row.expand(count, vocab).contiguous(), draws, params)
    expected = torch.softmax(row.double(), 0)
    tenth = expected.argsort().argsort() // wide  # tokens of like probability together
    share = torch.zeros(10, dtype=torch.float64).index_add(0, tenth, expected) * count
    chi_square = float(((torch.bincount(tenth[tokens], minlength=10) - share) ** 2 / share).sum())
    assert chi_square < 9 + 4 * math.sqrt(18)


@FACES
def test_great_noise_wins_from_far_below(draw: Draw) -> None:
    vocab, count = 128, 20_000
    params = sampling(temperature=1.0, seed=8)
    every = noise.gumbel(params.seed.expand(count), torch.arange(count), noise.TARGET, vocab)
    position, token = divmod(int(every[:, 64:].argmax()), 64)
    lead = every[position, 64 + token] - every[position, 0]
    assert lead > 11
    logits = torch.full((1, vocab), NEVER)
    logits[0, 0] = 0
    for margin, winner in ((0.01, 64 + token), (-0.01, 0)):
        logits[0, 64 + token] = margin - lead
        assert draw(logits, roots(1, position, plain=True), params).tolist() == [winner]


@FACES
def test_equal_scores_go_to_the_lowest_token(draw: Draw) -> None:
    ties = 0
    for position in range(40):
        if draw is verify.draw:
            low, high = noise.gumbel(torch.tensor([0]), torch.tensor([position]), noise.TARGET, 2)[0].numpy()
        else:
            words = (verify_numba_race.word(token, np.uint64(0), np.uint64(position)) for token in (0, 1))
            low, high = (np.float32(verify_numba_race.gumbel(np.uint32(w))) for w in words)
        if low > high and (high - low) + low == high:
            ties += 1
            row = torch.tensor([[float(high - low), 0.0]])
            assert draw(row, roots(1, position, plain=True), sampling(temperature=1.0)).tolist() == [0]
    assert ties > 3


@FACES
def test_ties_at_a_threshold_stay_in_and_greedy_ties_go_to_the_lowest(draw: Draw) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0, 0.0]]).expand(300, 6).contiguous()
    draws = roots(300, plain=True)
    assert set(draw(logits, draws, sampling(temperature=1.0, top_k=2)).tolist()) == {1, 2, 3, 4}
    assert set(draw(logits, draws, sampling(temperature=1.0, top_p=0.5)).tolist()) == {1, 2, 3, 4}
    assert set(draw(logits, draws, sampling(temperature=1.0, min_p=math.exp(-1) * 0.999)).tolist()) == {1, 2, 3, 4}
    ties = torch.tensor([[-1.0, -0.0, 0.0, 0.0], [math.nan, 3.0, 3.0, -math.inf], [-math.inf, 1, math.inf, math.inf]])
    assert draw(ties, roots(3, plain=True, greedy=True), sampling()).tolist() == [1, 1, 2]
    assert draw(ties, roots(3, plain=True), sampling()).tolist() == [1, 1, 2]


@FACES
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_odd_rows_never_crash(draw: Draw, temperature: float) -> None:
    vocab = 70
    nothing, broken = torch.full((vocab,), NEVER), torch.full((vocab,), -math.nan)
    lone, huge = nothing.clone(), torch.full((vocab,), -3e38)
    lone[66], huge[65], huge[3] = -5.0, 3e38, math.nan
    logits = torch.stack([nothing, broken, lone, huge])
    filters = {"temperature": temperature, "top_k": 5, "top_p": 0.9, "min_p": 0.1}
    assert draw(logits, roots(4, plain=True), sampling(**filters)).tolist() == [0, 0, 66, 65]
    bias = torch.zeros(1, vocab)
    bias[0, :7] = NEVER
    barred = sampling(biased=True, bias=bias, **filters)
    assert draw(logits, roots(4), barred).tolist() == [7, 7, 66, 65]
    barred.bias = torch.full((1, vocab), NEVER)
    assert draw(logits, roots(4), barred).tolist() == [0, 0, 66, 65]


@FACES
def test_penalties_see_the_drafts_above_them(draw: Draw) -> None:
    logits = torch.tensor([[3.0, 2.9, 0.0, 0.0]]).repeat(4, 1)
    counts = torch.zeros(1, 4, dtype=torch.int32)
    params = sampling(penalized=True, frequency=0.15, counts=counts, in_prompt=counts.bool())
    # The root's token 0 is not counted again; each draft of 0 below it weighs once more.
    assert draw(logits, chain([0, 0, 0], [2, 0]), params).tolist() == [0, 1, 1, 1]
    assert draw(logits, chain([0, 1, 0], [2, 0]), params).tolist() == [0, 1, 0, 1]


@FACES
def test_bad_words_reach_across_the_root(draw: Draw) -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 5.0, 4.0]]).repeat(3, 1)
    params = sampling(bad_words=torch.tensor([[[-1, -1, -1], [1, 2, 3]]]))
    assert draw(logits, chain([2, 2], [9, 1]), params).tolist() == [3, 4, 3]  # known 1, drafted 2
    assert draw(logits, chain([1, 2], [9, 9]), params).tolist() == [3, 3, 4]  # both drafted
    assert draw(logits, chain([4, 4], [1, 2]), params).tolist() == [4, 3, 3]  # both known
    short = chain([], [2])
    short.history[0, -1] = 1  # not part of the text
    assert draw(logits[:1], short, params).tolist() == [3]
    lone = sampling(bad_words=torch.tensor([[[-1, -1, 3]]]))
    assert draw(logits, chain([2, 2], [9, 1]), lone).tolist() == [4, 4, 4]


@FACES
def test_min_tokens_ends_inside_a_draft(draw: Draw) -> None:
    logits = torch.tensor([[0.0, 5.0, 4.0, 0.0]]).repeat(4, 1)
    params = sampling(min_length=5, stops=torch.tensor([[1, -1, 99]]))
    draws = chain([2, 2, 2], [0, 0, 0])
    assert draws.positions.tolist() == [3, 4, 5, 6]
    assert draw(logits, draws, params).tolist() == [2, 2, 1, 1]


@FACES
def test_placeholders_on_a_path_are_harmless(draw: Draw) -> None:
    logits, draws, params = scenario(7)
    params.penalized[:] = True
    draws.tokens[draws.parents >= 0] = -1
    tokens = draw(logits, draws, params)
    assert bool(((tokens >= 0) & (tokens < logits.shape[1])).all())


def test_the_face_is_chosen_by_device() -> None:
    assert verify.choose("cpu").draw is verify_numba.draw
    assert verify.choose(torch.device("meta")).draw is verify.draw
    draw_triton = pytest.importorskip("augury.kernels.draw_triton")
    assert verify.choose(torch.device("cuda")).draw is draw_triton.draw


def test_scores_are_vllms() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 9.0]])
    result = score(logits, torch.tensor([2, 0]), 2)
    exact = torch.log_softmax(logits.double(), -1)
    torch.testing.assert_close(result.logprob.double(), exact[[0, 1], [2, 0]], atol=1e-6, rtol=0)
    assert result.rank.tolist() == [2, 4]  # ties count against a token
    assert result.top_ids[1, 0] == 3
    assert set(result.top_ids[0].tolist()) == {1, 2}
    torch.testing.assert_close(result.top_logprobs[0].double(), exact[0, 1:3], atol=1e-6, rtol=0)
    assert score(logits, torch.tensor([0, 0]), 20).top_ids.shape == (2, 4)


def test_every_parameter_is_exercised() -> None:
    """A parameter added to SlotSampling must be added to the scenarios."""
    blank, touched = SlotSampling.allocate(3), set()
    for seed in range(20):
        params = scenario(seed)[2]
        for field in fields(params):
            old, new = getattr(blank, field.name), getattr(params, field.name)
            if old is None or not torch.equal(old, new):
                touched.add(field.name)
    assert touched == {field.name for field in fields(blank)}
