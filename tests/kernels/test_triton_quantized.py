"""Products with quantised weights: the dequantised matrix's, and every row the same bits in any company."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")
import interpreter  # noqa: F401
from step_cases import DEVICE

from augury.kernels import quantized_triton
from augury.kernels.quantized import FP8, Quantized, halves, quantised
from augury.kernels.torch_ops import TorchOps

KINDS = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE.type == "cuda" else [])  # interpreted bf16 is off
BOUND = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
WAYS = ("a line", "groups", "four bits")


def matrix(way: str, outs: int, depth: int, group: int = 128) -> Quantized:
    torch.manual_seed(outs + depth)
    groups = -(-depth // group)
    scales = (0.5 + torch.rand(groups, outs)) / depth**0.5
    if way == "a line":
        made = quantised(torch.randn(outs, depth) / depth**0.5)
    elif way == "groups":
        made = Quantized(torch.randn(outs, depth).to(FP8), scales, group)
    else:
        codes = torch.randint(0, 16, (outs, depth), dtype=torch.uint8)
        zeros = torch.randint(0, 16, (groups, outs), dtype=torch.uint8)
        made = Quantized(halves(codes, group), scales / 4, group, zeros)
    zeros = None if made.zeros is None else made.zeros.to(DEVICE)
    return Quantized(made.codes.to(DEVICE), made.scales.to(DEVICE), made.group, zeros)


def expected(x: Tensor, weight: Quantized, bias: Tensor | None) -> Tensor:
    return F.linear(x.double(), weight.unpacked().double(), None if bias is None else bias.double())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("way", "outs", "depth", "group"),
    [
        ("a line", 40, 96, 96),
        ("a line", 70, 1040, 1040),  # segments of unequal length
        ("groups", 33, 200, 128),
        ("groups", 40, 128, 64),
        ("four bits", 40, 256, 128),
        ("four bits", 33, 1056, 32),
    ],
)
def test_it_is_the_product_with_the_dequantised_matrix(
    kind: torch.dtype, way: str, outs: int, depth: int, group: int
) -> None:
    weight, biased = matrix(way, outs, depth, group), outs % 2 == 0
    x, bias = torch.randn(19, depth).to(DEVICE, kind), torch.randn(outs).to(DEVICE, kind) if biased else None
    want, bound = expected(x, weight, bias), BOUND[kind]
    got = quantized_triton.linear(x, weight, bias)
    assert got.dtype == kind
    torch.testing.assert_close(got.double(), want, rtol=bound, atol=bound)
    torch.testing.assert_close(TorchOps().packed_linear(x, weight, bias).double(), want, rtol=bound, atol=bound)
    assert torch.equal(quantized_triton.unpack(weight, kind), weight.unpacked().to(kind))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS[-1:])
def test_a_row_has_the_same_bits_in_any_company(kind: torch.dtype, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_triton, "SHORTEST", 64)
    weight = matrix(way, 70, 320, 64)
    assert quantized_triton.segments_of(70, 320, 64) == 4
    x = torch.randn(130, 320).to(DEVICE, kind)
    companies = ((32, (1, 16, 17), False), (130, (33, 64, 65), False), (130, (1, 17, 33, 64, 65), True))
    for most, fewer, steady in companies:  # unless told to be steady, few rows are multiplied by another instruction
        part = x[:most]
        whole = quantized_triton.linear(part, weight, steady=steady)
        for rows in fewer:
            assert torch.equal(quantized_triton.linear(part[:rows], weight, steady=steady), whole[:rows])
            assert torch.equal(quantized_triton.linear(part[-rows:], weight, steady=steady), whole[-rows:])


def test_every_code_of_eight_bits_is_the_number_it_stands_for() -> None:
    """Both ways of reading them, subnormal numbers and signed zeros included; the two that are no numbers apart."""
    codes = torch.arange(256, dtype=torch.uint8).view(FP8)
    codes = codes[~codes.float().isnan()].to(DEVICE)
    weight = Quantized(codes[None], torch.ones(1, 1, device=DEVICE), len(codes))
    ways = {quantized_triton.BITS, quantized_triton.kind_of(weight, DEVICE)}
    for kind in KINDS:
        for way in ways:
            got = quantized_triton.unpack(weight, kind, way)
            assert torch.equal(got, codes[None].to(kind))
            assert torch.equal(got.signbit(), codes[None].to(kind).signbit())


def test_rounding_to_eight_bits_is_as_fine_as_they_are() -> None:
    torch.manual_seed(0)
    weights = torch.randn(20, 300) * torch.logspace(-6, 6, 20)[:, None]
    weights[3] = 0
    made = quantised(weights)
    error = (made.unpacked() - weights).abs()
    top = weights.abs().amax(1, keepdim=True)
    assert (error <= weights.abs() / 16 * (1 + 1e-5) + top / 448 / 1024).all()  # half of 2^-3; half of 2^-9
    assert torch.equal(made.unpacked().abs().amax(1) > 0, top[:, 0] > 0)
