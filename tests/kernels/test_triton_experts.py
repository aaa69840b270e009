"""The Triton face of mixtures against the torch one: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from step_cases import DEVICE, quick
from torch import Tensor

pytest.importorskip("triton")
import interpreter  # noqa: F401

from augury.kernels import experts, experts_triton, route_triton

KINDS = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]
BOUND = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@quick(12)
@given(st.integers(1, 6), st.integers(1, 12), st.booleans(), st.booleans(), st.integers(0, 99))
def test_the_router_chooses_as_the_reference_does(
    rows: int, count: int, normalise: bool, ties: bool, seed: int
) -> None:
    """Ties go to the lower number; numbers of experts that are no powers of two."""
    torch.manual_seed(seed)
    total = count + rows
    logits = (torch.randint(-2, 3, (rows, total)).float() if ties else torch.randn(rows, total)).to(DEVICE)
    shares, chosen = route_triton.route(logits, count, normalise)
    wanted, numbers = experts.route(logits, count, normalise)
    assert torch.equal(chosen, numbers)
    torch.testing.assert_close(shares, wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_router_of_no_numbers_chooses_experts_that_are_there() -> None:
    _, chosen = route_triton.route(torch.full((2, 5), float("nan"), device=DEVICE), 3, True)
    assert ((chosen >= 0) & (chosen < 5)).all()


@quick(12)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 9), st.sampled_from([16, 32]), st.integers(0, 99))
def test_blocks_hold_every_pair_once_with_its_expert(rows: int, count: int, total: int, size: int, seed: int) -> None:
    torch.manual_seed(seed)
    chosen = torch.randint(0, total, (rows, count), device=DEVICE)
    blocks = route_triton.group(chosen, total, size)
    pairs, flat = rows * count, chosen.flatten().tolist()
    found: list[int] = []
    for number, owner in enumerate(blocks.owner.tolist()):
        block = blocks.order[number * size : (number + 1) * size].tolist()
        if owner >= 0:
            mine = [pair for pair in block if pair < pairs]
            assert mine and block == mine + [pairs] * (size - len(mine))
            assert all(flat[pair] == owner for pair in mine)
            found += mine
    assert found == sorted(range(pairs), key=lambda pair: (flat[pair], pair))  # in order, whatever the machine does


def case(kind: torch.dtype, rows: int, total: int, hidden: int, inner: int, count: int) -> tuple[Tensor, ...]:
    torch.manual_seed(rows + total)
    x = torch.randn(rows, hidden).to(DEVICE, kind)
    gate_up = (torch.randn(total, 2 * inner, hidden) / hidden**0.5).to(DEVICE, kind)
    down = (torch.randn(total, hidden, inner) / inner**0.5).to(DEVICE, kind)
    shares, chosen = experts.route(torch.randn(rows, total).to(DEVICE), count, True)
    return x, gate_up, down, chosen.contiguous(), shares.contiguous()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "total", "hidden", "inner", "count"), [(1, 5, 64, 64, 2), (7, 4, 100, 36, 3), (40, 3, 64, 33, 1)]
)
def test_they_run_as_the_reference_says(
    kind: torch.dtype, rows: int, total: int, hidden: int, inner: int, count: int
) -> None:
    given = case(kind, rows, total, hidden, inner, count)
    got, want = experts_triton.run_experts(*given), experts.run_experts(*given)
    assert got.dtype == kind
    assert (got - want).abs().max() <= BOUND[kind] * want.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_company(kind: torch.dtype) -> None:
    """In bf16 through every tile: few rows an expert have another than many."""
    most = 400 if DEVICE.type == "cuda" else 40
    x, gate_up, down, chosen, shares = case(kind, most, 4, 128, 64, 2)
    whole = experts_triton.run_experts(x, gate_up, down, chosen, shares)
    for rows in (1, 2, 17, 33, 70, 150, 300):
        if rows < most:
            for some in (slice(0, rows), slice(most - rows, most)):
                part = experts_triton.run_experts(x[some], gate_up, down, chosen[some], shares[some])
                assert torch.equal(part, whole[some])
