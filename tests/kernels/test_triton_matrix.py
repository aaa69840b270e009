"""The matrix product of exact mode: right, and every row the same bits in any company."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
import interpreter  # noqa: F401
from step_cases import DEVICE

from augury.kernels import matrix_triton

KINDS = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("depth", "outs"), [(64, 40), (100, 33), (192, 130)])
@pytest.mark.parametrize("biased", [False, True])
def test_it_is_the_product(kind: torch.dtype, depth: int, outs: int, biased: bool) -> None:
    torch.manual_seed(depth + outs)
    x, weight = torch.randn(37, depth).to(DEVICE, kind), torch.randn(outs, depth).to(DEVICE, kind)
    bias = torch.randn(outs).to(DEVICE, kind) if biased else None
    want = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    got = matrix_triton.linear(x, weight, bias)
    assert got.dtype == kind
    torch.testing.assert_close(got.double(), want, rtol=1e-2 if kind == torch.bfloat16 else 1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_company(kind: torch.dtype) -> None:
    torch.manual_seed(3)
    x, weight = torch.randn(300, 320).to(DEVICE, kind), torch.randn(96, 320).to(DEVICE, kind)
    whole = matrix_triton.linear(x, weight)
    for rows in (1, 2, 5, 16, 17, 32, 33, 64, 65, 128, 129, 300):
        assert torch.equal(matrix_triton.linear(x[:rows], weight), whole[:rows])
        assert torch.equal(matrix_triton.linear(x[-rows:], weight), whole[-rows:])


@pytest.mark.parametrize("rows", [1, 17, 70])  # past 64 one program works through all segments
@pytest.mark.parametrize("segments", [2, 4])
@pytest.mark.parametrize("biased", [False, True])
def test_segments_add_up(rows: int, segments: int, biased: bool) -> None:
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 512).to(DEVICE), torch.randn(80, 512).to(DEVICE)
    bias = torch.randn(80).to(DEVICE) if biased else None
    tile = matrix_triton.MatrixTile(16, 32, 4, 2)
    for _ in range(2):  # what programs count by is back at zero after the first
        got = matrix_triton.multiply(x, weight, bias, tile, segments)
        torch.testing.assert_close(got, F.linear(x, weight, bias), rtol=1e-5, atol=1e-4)
    assert torch.equal(matrix_triton.multiply(x[-1:], weight, bias, tile, segments), got[-1:])
