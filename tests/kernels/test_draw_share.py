"""Ranks that draw together draw what one draws: any split, any face, ties and odd numbers included."""

from __future__ import annotations

import threading

import pytest
import torch
from draw_oracle import roots, sampling
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from augury.kernels import verify
from augury.kernels.verify_share import draw_share, packed
from augury.parallel.shares import WORDS, edges
from augury.verify.sampling import Draws, SlotSampling


class Meeting:
    """The largest of what so many threads bring."""

    def __init__(self, size: int) -> None:
        self.barrier, self.brought = threading.Barrier(size), dict[int, Tensor]()

    def largest(self, x: Tensor) -> Tensor:
        self.brought[threading.get_ident()] = x.clone()
        self.barrier.wait()
        out = torch.stack(list(self.brought.values())).amax(0)
        self.barrier.wait()
        return out


def together(logits: Tensor, draws: Draws, params: SlotSampling, size: int) -> list[list[int]]:
    """What each of `size` ranks draws."""
    bounds, meeting = edges(logits.shape[1], size, WORDS), Meeting(size)
    drawn: dict[int, list[int]] = {}

    def run(rank: int) -> None:
        own = logits[:, bounds[rank] : bounds[rank + 1]].contiguous()
        drawn[rank] = draw_share(own, draws, params, bounds[rank], meeting.largest).tolist()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [drawn[rank] for rank in range(size)]


@pytest.mark.parametrize("kernels", ["", "torch"])
@given(
    vocab=st.sampled_from([3, 64, 65, 260, 700]),
    size=st.integers(2, 5),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 30.0]),
    step=st.sampled_from([1e-3, 0.5, 4.0]),  # coarse steps make ties
    odd=st.lists(st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0, 3e38]), max_size=8),
    seed=st.integers(-(2**63), 2**63 - 1),
)
@settings(max_examples=60)
def test_ranks_draw_what_one_draws(
    kernels: str, vocab: int, size: int, temperature: float, step: float, odd: list[float], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("augury.kernels.faces.asked", lambda: kernels or None)
        random = torch.Generator().manual_seed(seed & 0xFFFF)
        logits = (torch.randn(4, vocab, generator=random) * 3 / step).round() * step
        for i, value in enumerate(odd):
            logits[i % 4, int(torch.randint(vocab, (1,), generator=random))] = value
        logits[3] = float("-inf") if odd else logits[3]
        params = sampling(temperature=temperature, seed=seed)
        draws = roots(4, start=7, plain=True, greedy=temperature == 0)
        want = verify.choose("cpu").draw(logits, draws, params).tolist()
        assert together(logits, draws, params, size) == [want] * size


def test_keys_are_in_the_order_of_the_draw() -> None:
    scores = torch.tensor([float("-inf"), -3.0, -1e-30, 0.0, -0.0, 1e-30, 2.0, 2.0])
    tokens = torch.tensor([0, 5, 9, 7, 6, 1, 8, 3])
    order = packed(scores, tokens).argsort().tolist()
    assert order == [0, 1, 2, 3, 4, 5, 6, 7]  # of equal scores the lower token is the greater key
