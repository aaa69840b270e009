"""Few rows times a large matrix: which way is taken, and that it is the product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")
import interpreter  # noqa: F401
from step_cases import DEVICE

from augury.kernels import matrix_triton, stream_triton
from augury.kernels.stream_triton import MOST_SEGMENTS, way_of

SHARED = 227 << 10  # bytes of shared memory that a program of an H200 can have


@given(st.integers(1, 300), st.integers(1, 200_000), st.integers(1, 32_768), st.sampled_from([0, 1, 4]))
def test_a_way_covers_the_matrix_evenly_and_fits_the_processor(rows: int, outs: int, depth: int, asked: int) -> None:
    way = way_of(rows, outs, depth, asked)
    if way is None:
        return
    tile, segments = way
    assert rows <= tile.rows <= 64 and segments <= MOST_SEGMENTS and asked in (0, segments)
    assert depth % (tile.step * segments) == 0  # no program reads past the end, none adds zeros
    assert (tile.rows + tile.outs) * tile.step * 2 * tile.stages <= SHARED


@given(st.integers(1, 16), st.sampled_from([(6144, 4096), (4096, 14336), (2048, 2048), (128_256, 4096)]))
def test_rows_of_a_request_and_its_drafts_take_one_way(rows: int, matrix: tuple[int, int]) -> None:
    assert way_of(rows, *matrix) == way_of(1, *matrix) is not None


@pytest.mark.parametrize(
    ("rows", "outs", "depth"),
    [(65, 4096, 14336), (1, 1536, 576), (1, 4096, 4100), (64, 28672, 4096)],
    ids=["many rows", "a small matrix", "an odd depth", "rows enough for cuBLAS"],
)
def test_the_rest_is_left_to_cublas(rows: int, outs: int, depth: int) -> None:
    assert way_of(rows, outs, depth) is None


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="no CUDA device")
@pytest.mark.parametrize("rows", [1, 5, 16, 17, 32, 33, 64])
@pytest.mark.parametrize(("outs", "depth"), [(6144, 4096), (4096, 4096), (4096, 14336), (2048, 8192), (16384, 2048)])
def test_it_is_the_product_in_a_graph_of_others(rows: int, outs: int, depth: int) -> None:
    """Captured between two norms, each of which must wait for the one before it."""
    from augury.kernels.norm_triton import rms_norm

    torch.manual_seed(rows)
    weight = torch.randn(outs, depth, device=DEVICE, dtype=torch.bfloat16) * depth**-0.5
    ones = torch.ones(depth, device=DEVICE, dtype=torch.bfloat16), torch.ones(outs, device=DEVICE, dtype=torch.bfloat16)
    x = torch.randn(rows, depth, device=DEVICE, dtype=torch.bfloat16)

    def run() -> torch.Tensor:
        given = rms_norm(x, ones[0], 1e-6)
        out = stream_triton.linear(given, weight)
        return rms_norm(F.linear(given, weight) if out is None else out, ones[1], 1e-6)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    for seed in range(3):
        x.copy_(torch.randn(rows, depth, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        wide = F.rms_norm(x.double(), (depth,), eps=1e-6)
        want = F.rms_norm(F.linear(wide, weight.double()), (outs,), eps=1e-6)
        torch.testing.assert_close(out.double(), want, rtol=0.05, atol=0.05)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="no CUDA device")
@pytest.mark.parametrize("rows", [1, 5, 16, 32, 64])
@pytest.mark.parametrize(("outs", "depth"), [(6144, 4096), (4096, 4096), (4096, 14336), (28672, 4096), (2048, 8192)])
def test_larger_tiles_have_the_bits_of_exact_mode(rows: int, outs: int, depth: int) -> None:
    """Halves that cancel leave nothing but roundings, so another order of adding shows."""
    torch.manual_seed(rows)
    x, weight = (torch.randn(n, depth // 2, device=DEVICE, dtype=torch.bfloat16) for n in (rows, outs))
    x, weight = torch.cat([x, x * -1.01], 1), torch.cat([weight, weight], 1)
    out = stream_triton.linear(x, weight, segments=matrix_triton.segments_of(weight))
    assert out is None or torch.equal(out, matrix_triton.linear(x, weight))
    assert out is not None or rows > 32  # few rows have such a way


def test_a_cpu_has_no_such_way() -> None:
    x, weight = torch.randn(1, 4096), torch.randn(4096, 4096)
    assert stream_triton.linear(x.bfloat16(), weight.bfloat16()) is None
    assert matrix_triton.linear(x.to(DEVICE), weight[:8].to(DEVICE)).shape == (1, 8)
