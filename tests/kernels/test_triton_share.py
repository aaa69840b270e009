"""The Triton contest of a rank's own tokens: the best of all ranks is the reference's draw; interpreted on a CPU."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from draw_oracle import roots, sampling
from torch import Tensor

pytest.importorskip("triton")
from triton_reference import DEVICE, moved, reference  # noqa: F401  (a fixture of every test here)

from augury.kernels import share_triton, verify
from augury.kernels.verify_share import LOW_31, packed
from augury.parallel.shares import WORDS, edges
from augury.verify.sampling import Draws, SlotSampling


def drawn(logits: Tensor, draws: Draws, params: SlotSampling, size: int, chunk: int) -> list[int]:
    """The best of `size` ranks."""
    bounds, top = edges(logits.shape[1], size, WORDS), verify.ordered(logits).amax(1)
    keys = [
        packed(*share_triton.contest(logits[:, first:last].contiguous(), top, draws, params, first, chunk)).amax(1)
        for first, last in pairwise(bounds)
        if last > first
    ]
    best = torch.stack(keys).amax(0)
    return (LOW_31 - (best & LOW_31)).tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 20.0])
@pytest.mark.parametrize(("size", "chunk"), [(2, 64), (3, 128)])
def test_the_best_of_ranks_is_the_draw(temperature: float, size: int, chunk: int) -> None:
    random = torch.Generator().manual_seed(5)
    logits = (torch.randn(6, 300, generator=random) * 8).round() / 2  # coarse: ties
    logits[1, 7], logits[2, 250], logits[3, :200] = float("nan"), float("inf"), float("-inf")
    logits, draws = logits.to(DEVICE), moved(roots(6, start=11, plain=True, greedy=temperature == 0))
    params = moved(sampling(temperature=temperature, seed=-77))
    assert drawn(logits, draws, params, size, chunk) == verify.draw(logits, draws, params).tolist()
