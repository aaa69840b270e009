"""The likeliest tokens in Triton against torch's log_softmax and topk: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")
import interpreter  # noqa: F401

from augury.kernels import top_triton

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCABULARIES = [16, 70, 2048, 2049, 5000] + [128_256] * (DEVICE.type == "cuda")
QUICK = settings(
    max_examples=100 if DEVICE.type == "cuda" else 10, deadline=None, derandomize=True,
    phases=(Phase.explicit, Phase.generate),  # shrinking takes minutes under the interpreter
)  # fmt: skip


@QUICK
@given(st.integers(0, 10**6), st.sampled_from(VOCABULARIES), st.integers(1, 16), st.booleans(), st.booleans())
def test_tokens_and_scores_are_torchs(seed: int, vocab: int, k: int, ties: bool, mapped: bool) -> None:
    random = np.random.default_rng(seed)
    wide = torch.from_numpy(random.normal(size=(3, vocab + 5)) * 3).float().to(DEVICE, torch.float16)
    logits = wide.round()[:, :vocab] if ties else wide[:, :vocab]
    logits[1, random.random(vocab) < 0.9] = -math.inf
    logits[1, 0] = 1.0
    targets = torch.from_numpy(random.permutation(10**6)[:vocab]).to(DEVICE) if mapped else None
    tokens, scores = top_triton.top_children(logits, k, targets)
    exact = logits.double().log_softmax(1)
    order = logits.double().sort(dim=1, descending=True, stable=True).indices[:, :k]  # of equals the lowest first
    assert tokens.tolist() == (order if targets is None else targets[order]).tolist()
    torch.testing.assert_close(scores.double(), exact.gather(1, order), atol=2e-6, rtol=2e-6)


def test_a_line_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(30, 3000, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    tokens, scores = top_triton.top_children(logits, 2)
    alone = top_triton.top_children(logits[17:18], 2)
    assert torch.equal(tokens[17:18], alone[0])
    assert torch.equal(scores[17:18], alone[1])


@pytest.mark.parametrize("k", [0, 17])
def test_k_has_bounds(k: int) -> None:
    with pytest.raises(ValueError, match="1 to 16"):
        top_triton.top_children(torch.zeros(1, 40), k)
