"""Mixtures of experts on a CPU: the compiled face says what the reference says, and a row's bits are its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.kernels.experts import route, run_experts
from augury.kernels.numba_ops import NumbaOps

OPS = NumbaOps()
EXPERTS, HIDDEN, INNER, CHOSEN = 6, 48, 32, 3


def matrices(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    gate_up = torch.randn(EXPERTS, 2 * INNER, HIDDEN, generator=random) / HIDDEN**0.5
    return gate_up.to(dtype), (torch.randn(EXPERTS, HIDDEN, INNER, generator=random) / INNER**0.5).to(dtype)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(-9, 9), min_size=7, max_size=7), min_size=1, max_size=6), st.booleans())
def test_the_router_takes_the_likeliest_and_of_equals_the_first(lines: list[list[int]], normalise: bool) -> None:
    """Small integers, so that ties are everywhere."""
    logits = torch.tensor(lines, dtype=torch.float32)
    shares, experts = OPS.route(logits, CHOSEN, normalise)
    wanted = [sorted(range(7), key=lambda e: (-line[e], e))[:CHOSEN] for line in lines]
    assert experts.tolist() == wanted == route(logits, CHOSEN, normalise)[1].tolist()
    likely = torch.softmax(logits.double(), -1).gather(1, experts)
    likely = likely / likely.sum(-1, keepdim=True) if normalise else likely
    torch.testing.assert_close(shares.double(), likely, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(route(logits, CHOSEN, normalise)[0].double(), likely, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_are_what_the_formula_says_in_any_company(dtype: torch.dtype) -> None:
    """150 rows, all of which one expert has: more than are worked on at a time."""
    gate_up, down = matrices(dtype)
    random = torch.Generator().manual_seed(2)
    x, logits = torch.randn(150, HIDDEN, generator=random), torch.randn(150, EXPERTS, generator=random)
    logits[:, 2] += 9
    shares, experts = OPS.route(logits, CHOSEN, True)
    assert (experts == 2).any(1).all()
    whole = OPS.run_experts(x, gate_up, down, experts, shares)
    wanted = run_experts(x.double(), gate_up.double(), down.double(), experts, shares)
    torch.testing.assert_close(whole, wanted.float(), atol=1e-5, rtol=1e-4)
    for some in (slice(0, 1), slice(7, 9), slice(20, 23), slice(30, 47), slice(3, 140), slice(0, 150, 7)):
        part = OPS.run_experts(
            x[some].contiguous(), gate_up, down, experts[some].contiguous(), shares[some].contiguous()
        )
        assert torch.equal(part, whole[some])
    assert torch.equal(OPS.run_experts(x.flip(0), gate_up, down, experts.flip(0), shares.flip(0)).flip(0), whole)
