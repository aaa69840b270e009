"""The Triton draw against the torch reference, token for token: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from draw_oracle import NEVER, chain, roots, sampling, scenario
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")
import triton
import triton.language as tl
from triton_reference import DEVICE, ON_GPU, moved, quick, reference  # noqa: F401  (a fixture of every test here)

from augury.kernels import draw_triton, floor_triton, peak_triton, verify
from augury.verify.sampling import Draws, Masks, SlotSampling


def tokens_of(logits: Tensor, draws: Draws, params: SlotSampling, chunk: int | None = None) -> list[int]:
    """What the Triton face draws, which must be what the reference draws."""
    logits, draws, params = logits.to(DEVICE), moved(draws), moved(params)
    if draws.masks is not None:
        draws.masks = moved(draws.masks)
    want = verify.draw(logits.float(), draws, params)
    assert draw_triton.draw(logits, draws, params, chunk).tolist() == want.tolist()
    return want.tolist()


@quick(6)
@given(st.integers(0, 10**6), st.sampled_from([64, 256]), st.sampled_from([8, 8192]))
def test_every_edit_and_filter(monkeypatch: pytest.MonkeyPatch, seed: int, chunk: int, capacity: int) -> None:
    monkeypatch.setattr(draw_triton, "CAPACITY", capacity)  # a short list overflows, and the line is read again
    tokens_of(*scenario(seed), chunk)


@quick(6)
@given(st.integers(0, 10**6), st.booleans())
def test_grammars(seed: int, biased: bool) -> None:
    logits, draws, params = scenario(seed)
    random = np.random.default_rng(seed)
    words = -(-logits.shape[1] // 32)
    bits = torch.from_numpy(random.integers(-(2**31), 2**31, (3, words + 1), dtype=np.int64)).int()
    bits[2] = 0
    bits[2, 0] = 2  # token 1 alone
    draws.masks = Masks(bits, torch.from_numpy(random.integers(-1, 3, len(logits))))
    if biased and params.bias is not None:
        params.bias[:, :3] = NEVER
        params.biased[:] = True
    params.stops[:, 0] = 1
    tokens_of(logits, draws, params, 128)


def filtered(**columns: Any) -> SlotSampling:
    return sampling(**{"temperature": 1.0, "seed": 3, **columns})


FILTERS = [
    {},
    {"top_p": 0.9},
    {"top_p": 1e-9},
    {"top_p": 0.9999999},
    {"top_k": 1},
    {"top_k": 69},
    {"top_k": 70},
    {"min_p": 1.0},
    {"min_p": 1e-3, "top_p": 0.5},
    {"top_k": 30, "top_p": 0.7, "min_p": 0.01},
    {"temperature": 1e-4, "top_k": 3},
    {"temperature": 1e4, "top_p": 0.5, "top_k": 40},
]


@pytest.mark.parametrize("columns", FILTERS, ids=str)
def test_degenerate_lines(columns: dict[str, Any]) -> None:
    vocab, generator = 70, torch.Generator().manual_seed(1)
    even = torch.full((vocab,), 2.5)
    lone, huge, steps = torch.full((vocab,), NEVER), torch.full((vocab,), -3e38), torch.arange(vocab) // 10 * 1.0
    lone[66], huge[65], huge[3], steps[2] = -5.0, 3e38, math.nan, math.inf
    close = torch.randn(vocab, generator=generator) * 1e-4
    spread = torch.randn(vocab, generator=generator) * 40
    halves = torch.randn(vocab, generator=generator).bfloat16().float()
    logits = torch.stack([even, lone, huge, steps, close, spread, halves, torch.full((vocab,), math.nan)])
    tokens_of(logits, roots(len(logits), plain=True), filtered(**columns), 64)


def test_all_barred() -> None:
    logits = torch.randn(4, 70, generator=torch.Generator().manual_seed(2))
    logits[1] = NEVER
    bias = torch.full((1, 70), NEVER)
    for params in (sampling(biased=True, bias=bias), filtered(biased=True, bias=bias, top_p=0.5)):
        assert tokens_of(logits, roots(4), params, 64) == logits.argmax(1).tolist()
        params.bias = bias.clone()
        params.bias[0, 68] = 0.0
        params.min_length[:], params.stops[:] = 99, 68  # the only token that the bias allows may not come yet
        assert tokens_of(logits, roots(4), params, 64) == [68] * 4


def test_deep_paths() -> None:
    """A chain of 63 drafts: each weighs in the penalties of all below it."""
    random = np.random.default_rng(0)
    drafts = random.integers(0, 6, 63).tolist()
    params = sampling(
        penalized=True,
        frequency=0.3,
        repetition=1.2,
        presence=0.4,
        bad_words=torch.from_numpy(random.integers(0, 3, (1, 2, 4))),
    )
    logits = torch.from_numpy(random.normal(size=(64, 9))).float()
    tokens_of(logits, chain(drafts, [1, 2]), params, 16)


@pytest.mark.parametrize("kind", [torch.float16, torch.float32] + [torch.bfloat16] * ON_GPU)
def test_argmax(kind: torch.dtype) -> None:
    wide = torch.randn(5, 300, generator=torch.Generator().manual_seed(4)).to(DEVICE, kind)
    wide[0, :200], wide[1, 7], wide[2, 11], wide[3] = math.nan, math.inf, math.inf, NEVER
    wide[2, 150], wide[4, 150], wide[4, 20] = math.inf, 9.0, 9.0
    logits = wide[:, :190]  # lines further apart than they are long
    want = verify.ordered(logits.float()).argmax(1)
    assert want.tolist() == [0, 7, 11, 0, 20]
    targets = torch.arange(190, device=DEVICE) * 3
    assert peak_triton.argmax(logits).tolist() == want.tolist()
    assert peak_triton.argmax(logits, targets).tolist() == targets[want].tolist()


@pytest.mark.parametrize("scale", [0.05, 1.3, 3.0])
@pytest.mark.parametrize("columns", [{"top_p": 0.9}, {"top_k": 40, "top_p": 0.8}], ids=str)
def test_the_bracket_of_a_real_vocabulary_fits_its_list(
    monkeypatch: pytest.MonkeyPatch, scale: float, columns: dict[str, Any]
) -> None:
    for name in ("CANDIDATES", "READS"):
        monkeypatch.setattr(draw_triton, name, getattr(floor_triton, name))
    logits = (torch.randn(2, 128_256, generator=torch.Generator().manual_seed(5)) * scale).bfloat16().float().to(DEVICE)
    draws, params = moved(roots(2, plain=True)), moved(filtered(temperature=0.8, **columns))
    found = draw_triton.searched(logits, draws, params, 32_768)
    assert found.out.tolist() == verify.draw(logits, draws, params).tolist()
    assert 0 < int(found.plan.search.listed.min()) <= int(found.plan.search.listed.max()) <= draw_triton.CAPACITY


@pytest.mark.parametrize("columns", [{}, {"top_k": 50}, {"top_k": 50, "top_p": 0.9}], ids=str)
def test_barred_tokens_are_not_listed(columns: dict[str, Any]) -> None:
    """Under a grammar that leaves few tokens the list holds these alone, whichever chunk is first."""
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(6))
    logits[:, :970] = NEVER
    tokens_of(logits, roots(1, plain=True), filtered(**columns), 256)
    found = draw_triton.searched(logits.to(DEVICE), moved(roots(1, plain=True)), moved(filtered(**columns)), 256)
    assert 0 < int(found.plan.search.listed) <= 30


def test_half_logits_are_cast_on_load() -> None:
    logits, draws, params = scenario(11)
    tokens_of(logits.half(), draws, params, 256)


gpu = pytest.mark.skipif(not ON_GPU, reason="no CUDA device")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("scale", [0.05, 1.3, 4.0])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_a_real_vocabulary_eager_and_captured(scale: float, kind: torch.dtype) -> None:
    """One graph, captured for greedy requests, draws the reference's tokens for every later mix."""
    vocab, lines = 128_256, 24
    logits = torch.empty(lines, vocab, device=DEVICE, dtype=kind)
    draws, params = moved(roots(lines, 50)), moved(sampling(lines))
    draws.slots = torch.arange(lines, device=DEVICE)
    draws.history = torch.zeros(lines, 100, dtype=torch.int64, device=DEVICE)
    draw_triton.draw(logits.normal_(), draws, params)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = draw_triton.draw(logits, draws, params)
    random = np.random.default_rng(0)
    options = {"temperature": [0, 0.8, 1], "top_k": [0, 0, 50, 3000, 10**5], "top_p": [1, 0.9, 0.5], "min_p": [0, 0.05]}
    for _ in range(6):
        logits.copy_(torch.randn(lines, vocab, device=DEVICE) * scale)
        for name, values in options.items():
            column = getattr(params, name)
            column.copy_(torch.tensor(random.choice(values, lines), dtype=column.dtype))
        graph.replay()
        want = verify.draw(logits.float(), draws, params)
        assert out.tolist() == want.tolist() == draw_triton.draw(logits, draws, params).tolist()


@triton.jit
def _measure(scores, top, temperature, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, floor_triton.distances(tl.load(scores + at), tl.load(top), tl.load(temperature)))


@pytest.mark.parametrize("temperature", [1e-6, 1e-4, 0.1, 0.7, 0.8, 1.0, 1.9999999, 3.0, 1e4, 1e6])
@pytest.mark.parametrize("least", [2.0**-20, 2.0**-140])  # with the smaller one divisions are divisions
def test_distances_are_rounded_as_divisions_are(temperature: float, least: float) -> None:
    generator = torch.Generator().manual_seed(7)
    size = 4096
    spread = torch.rand(size, generator=generator) * 24 - 20
    scores = -(torch.rand(size, generator=generator) * 2.0**spread) - least
    scores[:4] = torch.tensor([0.0, NEVER, -3e38, -1e-45 if least < 1e-30 else -1.0])
    given = [part.to(DEVICE) for part in (scores, torch.zeros(1), torch.tensor([temperature]))]
    out = torch.empty(size, dtype=torch.int32, device=DEVICE)
    _measure[(1,)](*given, out, SIZE=size, enable_fp_fusion=False)
    want = (scores / torch.tensor(temperature)).abs().view(torch.int32)
    apart = (out.cpu() != want) & (scores.abs() < 4e25)  # past that only the order counts
    assert not apart.any(), (scores[apart], out.cpu()[apart], want[apart])
    assert bool((out.cpu()[scores.abs() > 1e30] > 0x60000000).all())
