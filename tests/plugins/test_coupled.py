"""The coupled rule inside vLLM: draws are plain decoding's, drafts only decide how many are taken."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import interpreter  # noqa: F401  (kernels run on a CPU)
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from augury.plugins.vllm import coupled_v2
from augury.plugins.vllm.coupled_v1 import NOT_DRAWN, lay_out
from augury.plugins.vllm.releases import refusal
from augury.plugins.vllm.walk import walk

DEVICE = os.environ.get("AUGURY_TEST_DEVICE", "cpu")
Requests = list[tuple[list[int], list[int]]]  # what was drafted, what each row drew: one more


@st.composite
def requests(draw: st.DrawFn) -> Requests:
    """Drafts of several lengths, many of them right."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        drafted = draw(st.lists(st.integers(0, 2), max_size=4))
        found.append((drafted, draw(st.lists(st.integers(0, 2), min_size=len(drafted) + 1, max_size=len(drafted) + 1))))
    return found


def taken(drafted: list[int], drawn: list[int]) -> list[int]:
    """One draw after the other, as long as the one before was drafted."""
    right = 0
    while right < len(drafted) and drafted[right] == drawn[right]:
        right += 1
    return drawn[: right + 1]


@given(requests())
def test_v1_takes_draws_up_to_the_first_that_was_not_drafted(batch: Requests) -> None:
    counts = [len(drafted) for drafted, _ in batch]
    drawn = torch.tensor([token for drafted, row in batch for token in row[: len(drafted)]], dtype=torch.int64)
    drafted = torch.tensor([token for guesses, _ in batch for token in guesses], dtype=torch.int32)
    bonus = torch.tensor([[row[-1]] for _, row in batch], dtype=torch.int32)
    found = lay_out(drawn, drafted, counts, max(counts), bonus)
    assert found.dtype == torch.int32 and found.shape == (len(batch), max(counts) + 1)
    assert [[t for t in line if t != NOT_DRAWN] for line in found.tolist()] == [taken(*one) for one in batch]


@given(requests())
def test_v2_walks_as_far(batch: Requests) -> None:
    draws = torch.tensor([token for _, row in batch for token in row], device=DEVICE)
    read = torch.tensor([token for guesses, _ in batch for token in [9, *guesses]], dtype=torch.int32, device=DEVICE)
    starts = torch.tensor([0, *(len(row) for _, row in batch)], dtype=torch.int32, device=DEVICE).cumsum(
        0, dtype=torch.int32
    )
    sampled, counts = walk(draws, read, starts, 4)
    assert [line[:n] for line, n in zip(sampled.tolist(), counts.tolist(), strict=True)] == [
        taken(*one) for one in batch
    ]


def test_v2_reads_nothing_of_a_request_without_rows() -> None:
    starts = torch.tensor([0, 0, 1], dtype=torch.int32, device=DEVICE)
    sampled, counts = walk(torch.tensor([7], device=DEVICE), torch.tensor([1], device=DEVICE), starts, 2)
    assert counts.tolist() == [0, 1] and sampled[1, 0] == 7


def test_v2_draws_with_the_noise_of_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM's own draw is given: the rows as processed, each with its position and its request's seed."""
    asked: list[Any] = []

    def draw(*args: Any, **named: Any) -> torch.Tensor:
        asked.append((args, named))
        return torch.tensor([5, 6])

    monkeypatch.setitem(
        __import__("sys").modules, "augury.plugins.vllm.walk", SimpleNamespace(walk=lambda *walked: walked)
    )
    given = dict(
        zip(coupled_v2.NEEDED, ("logits", "read", "starts", "places", "slots", "heat", "seeds", 1, False), strict=True)
    )
    drawn, read, starts, steps = coupled_v2.verify(draw, **given)
    assert asked == [(("logits", "slots", "heat", "seeds", "places"), {"apply_temperature": False, "use_fp64": False})]
    assert (drawn.tolist(), read, starts, steps) == ([5, 6], "read", "starts", 1)


@pytest.mark.parametrize("version", ["0.26.0", "0.29.1rc1", "0.32.0+cu130"])
def test_known_releases(version: str) -> None:
    assert refusal(version) is None


@pytest.mark.parametrize("version", ["0.25.3", "0.33.0", "1.0", "dev"])
def test_others_are_left_alone(version: str) -> None:
    reason = refusal(version)
    assert reason is not None and version in reason and "0.26 to 0.32" in reason
