"""n-gram lookup follows vLLM V1's rule to the letter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.config.speculative import SpeculativeConfig
from augury.index.ngram import longest_match, longest_matches
from augury.propose.ngram import NgramDrafter

REPEATABLE = settings(deadline=None, derandomize=True)  # the first call compiles
VECTORS = [  # context, min, max, k, draft
    ([1, 2, 3, 4, 1, 2, 3, 5, 6], 2, 2, 2, []),
    ([1, 2, 3, 4, 1, 2, 3], 2, 2, 3, [4, 1, 2]),
    ([1, 2, 3, 4, 1, 2, 3], 2, 2, 2, [4, 1]),
    ([1, 2, 3, 4, 1, 2, 3], 1, 1, 3, [4, 1, 2]),
    ([1, 2, 3, 4, 1, 2, 3], 1, 1, 2, [4, 1]),
    ([1, 2, 3, 4, 1, 2, 3], 4, 4, 2, []),
    ([1, 2, 3, 4, 1, 2, 3], 3, 4, 2, [4, 1]),
    ([1, 3, 6, 2, 3, 4, 1, 2, 3], 2, 2, 3, [4, 1, 2]),
    ([1, 3, 6, 2, 3, 4, 1, 2, 3], 1, 1, 2, [6, 2]),
    ([1, 2, 3, 4, 5], 2, 2, 2, []),
    ([2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 3, 4], 3, 4, 2, [1, 2]),
    ([3, 4, 5, 2, 3, 4, 1, 2, 3, 4], 2, 4, 2, [1, 2]),
    ([1, 2, 3, 100, 1, 2, 3, 200, 1, 2, 3, 300, 1, 2, 3], 3, 3, 2, [100, 1]),
    ([1, 2] * 4, 1, 5, 4, [1, 2]),
    ([7] * 6, 1, 5, 4, [7]),
    ([7] * 6, 1, 2, 4, [7, 7, 7, 7]),  # matches that overlap each other
    ([1, 2] * 4, 1, 3, 4, [1, 2, 1, 2]),
    ([], 1, 3, 4, []),
    ([4], 1, 3, 4, []),
]

LOOPS = st.builds(
    lambda head, loop, times, tail: head + loop * times + tail,
    *(st.lists(st.integers(0, 2), max_size=3), st.lists(st.integers(0, 2), min_size=1, max_size=4)),
    *(st.integers(1, 7), st.lists(st.integers(0, 2), max_size=2)),
)


def brute_force(context: list[int], min_n: int, max_n: int, k: int, limit: int) -> list[int]:
    """Try every n from the longest and every place from the first."""
    size = len(context)
    for n in range(min(max_n, size - 1), min_n - 1, -1):
        for start in range(size - n):
            if context[start : start + n] == context[size - n :]:
                return context[start + n : start + n + max(0, min(k, limit - size))]
    return []


def match(context: list[int], min_n: int, max_n: int, k: int, limit: int = 10_000) -> list[int]:
    padded = np.array([*context, 1, 2, 3, 1, 2, 3], dtype=np.int64)  # what lies past the length must not matter
    return longest_match(padded, len(context), min_n, max_n, k, limit).tolist()


@pytest.mark.parametrize(("context", "min_n", "max_n", "k", "draft"), VECTORS)
def test_worked_vectors(context: list[int], min_n: int, max_n: int, k: int, draft: list[int]) -> None:
    assert match(context, min_n, max_n, k) == draft
    assert brute_force(context, min_n, max_n, k, 10_000) == draft


@REPEATABLE
@given(
    context=st.lists(st.integers(0, 2), max_size=40) | LOOPS,
    min_n=st.integers(1, 4),
    extra=st.integers(0, 5),
    k=st.integers(0, 6),
    room=st.integers(-1, 8),
)
def test_every_context_agrees_with_brute_force(context: list[int], min_n: int, extra: int, k: int, room: int) -> None:
    limit = len(context) + room
    assert match(context, min_n, min_n + extra, k, limit) == brute_force(context, min_n, min_n + extra, k, limit)


@REPEATABLE
@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=5),
    budget=st.lists(st.integers(0, 5), min_size=5, max_size=5),
)
def test_batch_is_one_by_one(rows: list[list[int]], budget: list[int]) -> None:
    groups = len(rows)
    history = np.full((groups + 1, 12), 9, dtype=np.int64)
    for g, row in enumerate(rows):
        history[groups - g, : len(row)] = row
    tokens, counts = np.zeros((groups, 4), np.int64), np.zeros(groups, np.int64)
    slots, lengths = np.arange(groups, 0, -1), np.array([len(r) for r in rows])
    longest_matches(history, slots, lengths, np.array(budget[:groups]), 1, 3, 100, tokens, counts)
    drafts = [tokens[g, : counts[g]].tolist() for g in range(groups)]
    assert drafts == [match(row, 1, 3, min(most, 4)) for row, most in zip(rows, budget, strict=False)]


def test_drafter_fills_a_chain() -> None:
    config = SpeculativeConfig.parse({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2})
    assert config is not None
    history = torch.tensor([[4, 5, 6, 0, 0], [1, 2, 3, 1, 2], [7, 8, 7, 8, 0]])
    slots, lengths = torch.tensor([1, 0, 2]), torch.tensor([5, 3, 4])
    draft = NgramDrafter(config, max_model_len=64).propose(slots, lengths, history, torch.tensor([2, 2, 1]))
    assert draft.count.tolist() == [2, 0, 1]
    assert draft.tokens[0].tolist() == [3, 1]
    assert draft.tokens[2, 0] == 7
    assert draft.parents.tolist() == [[-1, 0]] * 3


def test_drafter_stops_at_the_longest_text() -> None:
    config = SpeculativeConfig.parse({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 1})
    assert config is not None
    history, slots, lengths = torch.tensor([[1, 2, 3, 1]]), torch.tensor([0]), torch.tensor([4])
    counts = {
        limit: int(NgramDrafter(config, limit).propose(slots, lengths, history, torch.tensor([3])).count)
        for limit in (3, 4, 5, 6, 9)
    }
    assert counts == {3: 0, 4: 0, 5: 1, 6: 2, 9: 3}
