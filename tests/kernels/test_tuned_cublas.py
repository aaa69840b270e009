"""Products by another of cuBLAS's algorithms: the fastest that has the bits of cuBLAS's own choice, kept on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from augury.kernels import tuned_cublas
from augury.kernels.cublas_lt import Product, cublas_lt
from augury.kernels.tuned_cublas import GAIN, Tuner, fastest, tuner, tuning

CUDA = torch.device("cuda")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
BAD_ENDS = (
    'int8", ""',
    'bfloat16", "x"',
    'bfloat16", "00ff"',
)  # of a line in the file: no such type, no code, too short a one
FAST = b"fast" * 16
OTHER_ORDER, BROKEN = b"another order of adding", b"cannot be run"


class Library:
    """Algorithms that multiply as torch does, but for two."""

    version = 1

    def __init__(self, *algorithms: bytes) -> None:
        self._algorithms = list(algorithms)

    def algorithms(self, product: Product) -> list[bytes]:
        return self._algorithms

    def multiply(self, x: torch.Tensor, weight: torch.Tensor, algorithm: bytes) -> torch.Tensor:
        if algorithm == BROKEN:
            raise RuntimeError("cublasLtMatmul returned 15")
        out = F.linear(x, weight)
        return out * (1 + 1e-2) if algorithm == OTHER_ORDER else out


@given(st.lists(st.floats(0.5, 2.0), min_size=4, max_size=4))
def test_the_fastest_with_the_same_bits_is_chosen_if_it_is_worth_it(speeds: list[float]) -> None:
    names = (b"first", b"second", b"third", b"fourth")
    library: Any = Library(OTHER_ORDER, *names, BROKEN)
    times = {None: 1.0, OTHER_ORDER: 0.1, BROKEN: 0.1, **dict(zip(names, speeds, strict=True))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuned_cublas, "_times", lambda runs, x, weights, rounds: {name: times[name] for name in runs})
        chosen = fastest(library, Product(40, 64, 32, torch.bfloat16), [torch.randn(64, 32, dtype=torch.bfloat16)])
    assert chosen == (names[speeds.index(min(speeds))] if min(speeds) < GAIN else None)


@pytest.mark.parametrize("row", ["", "{}", "[[1, 2]]", "[null]", *(f'[[64, 8, 8, "torch.{x}]]' for x in BAD_ENDS)])
def test_a_file_that_cannot_be_read_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str
) -> None:
    library: Any = Library()
    monkeypatch.setenv("AUGURY_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    path = Tuner(library, CUDA)._file
    path.parent.mkdir(parents=True)
    path.write_text(row)
    assert Tuner(library, CUDA)._chosen == {}


def test_what_was_chosen_is_known_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = Library()
    monkeypatch.setenv("AUGURY_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(tuned_cublas, "fastest", lambda library, product, weights: FAST if product.rows > 64 else None)
    first, weight = Tuner(library, CUDA), torch.zeros(2048, 2048, dtype=torch.bfloat16)
    with first.tuning():
        for rows in (64, 128, 128, 2048):  # the last is too many
            assert first.linear(torch.zeros(rows, 2048, dtype=torch.bfloat16), weight) is None
    known = {Product(64, 2048, 2048, torch.bfloat16): None, Product(128, 2048, 2048, torch.bfloat16): FAST}
    assert first._chosen == Tuner(library, CUDA)._chosen == known


def test_an_algorithm_that_the_library_refuses_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library: Any = Library(BROKEN)
    monkeypatch.setenv("AUGURY_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(tuned_cublas, "ALIGNED", 1)  # torch aligns to less on a CPU
    tuned, x, weight = Tuner(library, CUDA), torch.zeros(64, 32), torch.zeros(32, 32)
    tuned._chosen[Product.of(x, weight)] = BROKEN
    assert tuned.linear(x, weight) is None and tuned._chosen == {Product.of(x, weight): None}


def test_without_a_gpu_nothing_is_tuned() -> None:
    assert tuner(torch.device("cpu")) is None
    with tuning(torch.device("cpu")):
        assert tuned_cublas.linear(torch.zeros(64, 2048), torch.zeros(2048, 2048)) is None


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "outs", "depth"), [(40, 4096, 4096), (128, 6144, 4096), (200, 4096, 14336)])
def test_every_algorithm_is_the_product(rows: int, outs: int, depth: int, dtype: torch.dtype) -> None:
    library = cublas_lt(CUDA)
    assert library is not None
    x, weight = (torch.randn(n, depth, device=CUDA, dtype=dtype) * depth**-0.25 for n in (rows, outs))
    true = x.double() @ weight.double().T
    found = library.algorithms(Product(rows, outs, depth, dtype))
    assert len(found) > 3
    for algorithm in found:
        error = (library.multiply(x, weight, algorithm).double() - true).norm() / true.norm()
        assert error < 4e-3


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("rows", [64, 96, 128])
def test_a_tuned_product_has_the_bits_of_cublas_in_a_graph_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setenv("AUGURY_CACHE", str(tmp_path))
    library = cublas_lt(CUDA)
    assert library is not None
    tuned = Tuner(library, CUDA)
    weights = [torch.randn(outs, 4096, device=CUDA, dtype=torch.bfloat16) for outs in (4096, 6144, 28672, 32000)]
    x = torch.randn(rows, 4096, device=CUDA, dtype=torch.bfloat16)
    with tuned.tuning():
        for weight in weights:
            tuned.linear(x, weight)
    assert len(tuned._chosen) == len(weights)
    graph, outs = torch.cuda.CUDAGraph(), list[torch.Tensor | None]()
    with torch.cuda.graph(graph):
        outs += [tuned.linear(x, weight) for weight in weights]
    for _ in range(3):
        x.normal_()
        graph.replay()
        for out, weight in zip(outs, weights, strict=True):
            assert out is None or torch.equal(out, F.linear(x, weight))
