"""The processed law at a line: both faces against the slow oracle in float64, and against the draw beside them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from draw_oracle import NEVER, chain, roots, sampling, scenario
from hypothesis import given, settings
from hypothesis import strategies as st
from probs_oracle import Face, wrong_laws

from augury.kernels import verify_numba, verify_probs, verify_probs_numba

pytestmark = pytest.mark.usefixtures("one_thread")

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=50)  # the first call compiles
PROBABILITIES = [verify_probs.probabilities, verify_probs_numba.probabilities]
FACES = pytest.mark.parametrize("face", PROBABILITIES, ids=["torch", "numba"])


@FACES
@REPEATABLE
@given(st.integers(0, 10**6))
def test_laws_are_the_oracles(face: Face, seed: int) -> None:
    assert not wrong_laws(face, [seed])


@FACES
def test_laws_of_many_scenarios(face: Face) -> None:
    assert not wrong_laws(face, range(60))


@FACES
@REPEATABLE
@given(st.integers(0, 10**6))
def test_a_law_depends_on_its_own_path_only(face: Face, seed: int) -> None:
    logits, draws, params = scenario(seed)
    laws = face(logits, draws, params)
    line = seed % len(laws)
    path = [line]
    while int(draws.parents[path[0]]) >= 0:
        path.insert(0, int(draws.parents[path[0]]))
    for padding in (0, 3):
        rows = torch.tensor([*path, *[0] * padding])
        alone = replace(
            draws,
            slots=draws.slots[rows],
            positions=draws.positions[rows],
            tokens=draws.tokens[rows],
            parents=torch.tensor([*range(-1, len(path) - 1), *[-1] * padding]),
            count=len(path),
        )
        shorter = logits[rows]
        shorter[len(path) :] = math.nan
        assert torch.equal(face(shorter, alone, params)[len(path) - 1], laws[line])


def test_threads_find_the_same_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [scenario(seed) for seed in range(20)]
    alone = [verify_probs_numba.probabilities(*case) for case in cases]
    monkeypatch.setattr(verify_numba, "PARALLEL_FROM", 0)
    for case, want in zip(cases, alone, strict=True):
        assert torch.equal(verify_probs_numba.probabilities(*case), want)


@FACES
@pytest.mark.parametrize("vocab", [151_936, 262_144])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 50, "min_p": 0.01}], ids=str)
def test_wide_laws_sum_to_one(face: Face, vocab: int, filters: dict[str, float]) -> None:
    logits = torch.randn(2, vocab, generator=torch.Generator().manual_seed(1)) * 2
    params = sampling(temperature=0.9, **filters)
    laws = face(logits, roots(2, plain=True), params)
    assert laws.shape == logits.shape
    assert laws.dtype == torch.float32
    torch.testing.assert_close(laws.sum(1, dtype=torch.float64), torch.ones(2).double(), atol=2e-6, rtol=0)
    if not filters:
        exact = torch.softmax(logits.double() / 0.9, 1)  # float32 sums of 262,144 terms stray by more than this on ARM
        torch.testing.assert_close(laws.double(), exact, atol=1e-9, rtol=3e-6)
    elif "top_k" in filters:
        assert ((laws > 0).sum(1) <= 50).all()


@FACES
def test_a_padded_vocabulary_gets_nothing(face: Face) -> None:
    logits = torch.randn(3, 70, generator=torch.Generator().manual_seed(2))
    logits[:, 65:] = NEVER
    laws = face(logits, roots(3, plain=True), sampling(temperature=1.0))
    assert not laws[:, 65:].any()
    assert (laws[:, :65] > 0).all()


@FACES
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_odd_rows_have_a_law(face: Face, temperature: float) -> None:
    vocab = 70
    nothing, broken = torch.full((vocab,), NEVER), torch.full((vocab,), -math.nan)
    lone, huge = nothing.clone(), torch.full((vocab,), -3e38)
    lone[66], huge[65], huge[3] = -5.0, 3e38, math.nan
    logits = torch.stack([nothing, broken, lone, huge])
    filters = {"temperature": temperature, "top_k": 5, "top_p": 0.9, "min_p": 0.1}
    bias = torch.zeros(1, vocab)
    bias[0, :7] = NEVER
    shut = torch.full((1, vocab), NEVER)
    for params, plain, tokens in (
        (sampling(**filters), True, [0, 0, 66, 65]),
        (sampling(biased=True, bias=bias, **filters), False, [7, 7, 66, 65]),
        (sampling(biased=True, bias=shut, **filters), False, [0, 0, 66, 65]),
    ):
        laws = face(logits, roots(4, plain=plain), params)
        assert torch.equal(laws, torch.nn.functional.one_hot(torch.tensor(tokens), vocab).float())


@FACES
def test_infinite_logits_share(face: Face) -> None:
    logits = torch.tensor([[0.0, math.inf, 1.0, math.inf]])
    assert face(logits, roots(1, plain=True), sampling(temperature=1.0)).tolist() == [[0, 0.5, 0, 0.5]]


@FACES
def test_penalties_see_the_drafts_above_them(face: Face) -> None:
    logits = torch.zeros(3, 2)
    counts = torch.zeros(1, 2, dtype=torch.int32)
    params = sampling(temperature=1.0, penalized=True, frequency=1.0, counts=counts, in_prompt=counts.bool())
    laws = face(logits, chain([0, 0], [1]), params)
    expected = [1 / (1 + math.exp(times)) for times in (0, 1, 2)]  # each draft of 0 weighs once more
    torch.testing.assert_close(laws[:, 0], torch.tensor(expected), atol=1e-6, rtol=0)


def test_the_face_is_chosen_by_device() -> None:
    assert verify_probs.choose("cpu") is verify_probs_numba.probabilities
    assert verify_probs.choose(torch.device("meta")) is verify_probs.probabilities
    probs_triton = pytest.importorskip("augury.kernels.probs_triton")
    assert verify_probs.choose(torch.device("cuda")) is probs_triton.probabilities
