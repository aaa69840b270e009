"""Products in integers: exact sums of blocks, one order of float additions, float32's precision."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_matrices import packed_matrix

from augury.kernels import choose
from augury.kernels.digits_numba import EXACT, FAST
from augury.kernels.tiles import BLOCK, Tiled, tiled
from augury.kernels.unpack import Packed
from augury.model.gguf_blocks import UNPACK

CPU = torch.device("cpu")
LARGEST = {EXACT: 127 << 16, FAST: 127}
SHAPES = [(4, 96), (30, 96), (257, 96), (64, 1184)]

Digits = tuple[int, ...]


def product(x: torch.Tensor, packed: Packed, digits: Digits, bias: torch.Tensor | None = None) -> torch.Tensor:
    return choose(CPU).packed_linear(x, tiled(packed, digits), bias)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def nearest(number: Fraction) -> Fraction:
    """The float32 nearest to a number, ties to even."""
    if not number:
        return Fraction(0)
    power = abs(number).numerator.bit_length() - number.denominator.bit_length()
    unit = Fraction(2) ** (power - 23 if abs(number) >= Fraction(2) ** power else power - 24)
    return round(number / unit) * unit


def one_sum(x: np.ndarray[Any, Any], codes: np.ndarray[Any, Any], scales: np.ndarray[Any, Any], top: int) -> Fraction:
    """The definition: a line times a row, in fractions that are rounded where the kernel rounds."""
    total = Fraction(0)
    for block in range(len(scales)):
        values = [Fraction(float(v)) for v in x[block * BLOCK : (block + 1) * BLOCK]]
        largest = max(abs(v) for v in values)
        step = nearest(largest * nearest(Fraction(1, top)))
        inverse = nearest(Fraction(top) / largest) if largest else Fraction(0)
        numbers = [round(nearest(v * inverse)) for v in values]
        products = [n * int(c) for n, c in zip(numbers, codes[block * BLOCK :], strict=False)]
        size = BLOCK // (len(scales[block]) - 1)
        wholes = [sum(products[start : start + size]) for start in range(0, BLOCK, size)]
        *parts, shift = (Fraction(float(v)) for v in scales[block])
        for scale, whole in zip(parts, wholes, strict=True):
            total = nearest(nearest(Fraction(whole)) * nearest(scale * step) + total)
        total = nearest(shift * nearest(nearest(Fraction(sum(numbers))) * step) + total)
    return total


def whole_codes(packed: Packed) -> np.ndarray[Any, Any]:
    if packed.codes.dtype == torch.int8:
        return packed.codes.numpy()
    halves = packed.codes.numpy().reshape(len(packed), -1, BLOCK // 2)
    return np.concatenate([halves & 15, halves >> 4], -1).reshape(len(packed), -1)


@pytest.mark.parametrize("digits", [EXACT, FAST])
@pytest.mark.parametrize("kind", UNPACK)
def test_products_are_the_definition_to_the_bit(kind: str, digits: Digits) -> None:
    packed, _ = packed_matrix(kind, 6, 96)
    x = normal(1, 5, packed.width) * torch.logspace(-6, 6, 5)[:, None]
    x[2, :40] = 0
    found, codes = product(x, packed, digits), whole_codes(packed)
    for r in range(len(x)):
        for line in range(len(packed)):
            wanted = one_sum(x[r].numpy(), codes[line], packed.scales[line].numpy(), LARGEST[digits])
            assert Fraction(float(found[r, line])) == wanted, (r, line)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-(2.0**40), 2.0**40, width=32, allow_subnormal=False), min_size=BLOCK, max_size=BLOCK))
def test_any_activations_are_split_soundly(values: list[float]) -> None:
    """With the largest codes of all, no digit, sum or carry overflows."""
    packed = Packed(torch.full((4, BLOCK), -128, dtype=torch.int8), torch.tensor([[[1.0, 1.0, 0.0]]] * 4))
    x = torch.tensor([values], dtype=torch.float32)
    x[x.abs() < 2.0**-60] = 0
    wanted = one_sum(x[0].numpy(), packed.codes[0].numpy(), packed.scales[0].numpy(), LARGEST[EXACT])
    assert Fraction(float(product(x, packed, EXACT)[0, 0])) == wanted


@pytest.mark.parametrize("digits", [EXACT, FAST])
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "Q8_0"])
@pytest.mark.parametrize(("lines", "width"), SHAPES)
def test_a_row_is_the_same_in_any_company(kind: str, digits: Digits, lines: int, width: int) -> None:
    packed, _ = packed_matrix(kind, lines, width)
    x, bias = normal(2, 150, packed.width), torch.arange(lines, dtype=torch.float32)
    alone = torch.cat([product(row[None], packed, digits, bias) for row in x])
    for rows in (2, 3, 4, 7, 16, 65, 150):
        assert torch.equal(product(x[:rows], packed, digits, bias), alone[:rows])


@pytest.mark.parametrize("kind", UNPACK)
def test_three_digits_are_as_near_the_truth_as_float32(kind: str) -> None:
    """Activations with outliers a thousand times the rest, as real ones have."""
    packed, twin = packed_matrix(kind, 512, 576)
    x = normal(3, 16, packed.width)
    x[:, 7] *= 1000
    truth = x.double() @ twin.double().T
    ours, floats = product(x, packed, EXACT), x @ twin.T
    assert (ours - truth).abs().max() <= 1.5 * (floats - truth).abs().max()
    assert (ours - truth).norm() <= 1.5 * (floats - truth).norm()


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_a_number_stays_in_its_row(bad: float) -> None:
    packed, _ = packed_matrix("Q4_1", 8, 96)
    x = normal(4, 3, 96)
    clean = product(x, packed, EXACT)
    x[1, 50] = bad
    found = product(x, packed, EXACT)
    assert found[1].isnan().all() and torch.equal(found[[0, 2]], clean[[0, 2]])


def test_next_to_nothing_counts_as_nothing() -> None:
    packed, _ = packed_matrix("Q4_1", 8, 64)
    x = normal(5, 2, 64)
    x[1, :32] = 1e-40
    x[0, :32] = 0
    x[1, 32:] = x[0, 32:]
    found = product(x, packed, EXACT)
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("kind", UNPACK)
@pytest.mark.parametrize("lines", [4, 13, 30])
def test_tiles_hold_every_weight(kind: str, lines: int) -> None:
    packed, twin = packed_matrix(kind, lines, 96)
    matrix = tiled(packed, EXACT)
    wanted = torch.tensor([lines - 1, 0, 2, 0])
    assert len(matrix) == lines and matrix.width == packed.width
    assert torch.equal(matrix.unpacked(), twin) and torch.equal(matrix.lines(wanted), twin[wanted])
    assert torch.equal(packed.lines(wanted), twin[wanted])


OTHER_MACHINE = """
import torch, numpy as np
from augury.kernels import choose, machine
from augury.kernels.digits_numba import EXACT, FAST
from augury.kernels.tiles import tiled
from packed_matrices import packed_matrix
assert not machine.DOT_PRODUCTS and machine.LINES == 4
x = torch.from_numpy(np.random.default_rng(6).standard_normal((3, 96)).astype(np.float32))
for digits in (EXACT, FAST):
    packed, _ = packed_matrix("Q4_1", 9, 96)
    print(choose(torch.device("cpu")).packed_linear(x, tiled(packed, digits)).numpy().tobytes().hex())
"""


def test_machines_without_dot_products_give_the_same_bits() -> None:
    """Its kernels are kept beside ours, by the machine they are for: half a minute to compile, the first time."""
    told = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    told["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", OTHER_MACHINE], env=os.environ | told, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    packed, _ = packed_matrix("Q4_1", 9, 96)
    here = [product(normal(6, 3, 96), packed, digits).numpy().tobytes().hex() for digits in (EXACT, FAST)]
    assert done.stdout.split() == here


def test_machines_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, _ = packed_matrix("Q4_1", 8, 64)
    ops = choose(CPU)
    fast = ops.arrange(packed, fast=True)
    assert isinstance(fast, Tiled) and fast.digits == FAST
    for there in (True, False):
        monkeypatch.setattr("augury.kernels.machine.DOT_PRODUCTS", there)
        assert isinstance(ops.arrange(packed, fast=False), Tiled) == there
