"""n-gram lookup follows vLLM V1's rule to the letter, and its variant with the latest match; all faces agree."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.config.resolve import resolve
from augury.drafters.base import DrafterSetup
from augury.drafters.ngram import NgramDrafter
from augury.drafters.ngram_gpu import NgramGpuDrafter, continuation
from augury.index.ngram import NgramIndex

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

LATEST = [  # vLLM V2's rule without its filler; vectors of the same shape
    ([1, 2, 3, 100, 1, 2, 3, 200, 1, 2, 3, 300, 1, 2, 3], 3, 3, 2, [300, 1]),
    ([1, 2] * 4, 1, 5, 4, [1, 2]),
    ([7] * 6, 1, 5, 4, [7]),
    ([1, 2, 3, 4, 5], 2, 2, 2, []),
    ([1, 3, 6, 2, 3, 4, 1, 2, 3], 1, 1, 2, [4, 1]),
    ([7] * 6, 1, 2, 4, [7]),
]

LOOPS = st.builds(
    lambda head, loop, times, tail: head + loop * times + tail,
    *(st.lists(st.integers(0, 2), max_size=3), st.lists(st.integers(0, 2), min_size=1, max_size=4)),
    *(st.integers(1, 7), st.lists(st.integers(0, 2), max_size=2)),
)
CONTEXTS = st.lists(st.integers(0, 2), max_size=40) | LOOPS


def brute_force(context: list[int], min_n: int, max_n: int, k: int, limit: int, latest: bool = False) -> list[int]:
    """Try every n from the longest and every place from the first, or from the last."""
    size = len(context)
    for n in range(min(max_n, size - 1), min_n - 1, -1):
        starts = range(size - n)
        for start in reversed(starts) if latest else starts:
            if context[start : start + n] == context[size - n :]:
                return context[start + n : start + n + max(0, min(k, limit - size))]
    return []


def ask(index: NgramIndex, slot: int, context: list[int], k: int, limit: int = 10_000) -> list[int]:
    """One lookup through the batch call; what lies past the length must not matter."""
    history = np.full((slot + 1, len(context) + 6), 1, dtype=np.int64)
    history[slot, : len(context)] = context
    tokens, counts = np.zeros((1, max(k, 1)), np.int64), np.zeros(1, np.int64)
    one = np.array([slot])
    index.propose(history, one, one, np.array([len(context)]), np.array([k]), limit, tokens, counts)
    return tokens[0, : counts[0]].tolist()


def ask_tensors(context: list[int], min_n: int, max_n: int, k: int, limit: int, latest: bool) -> list[int]:
    config = settings_of(k=max(k, 1), low=min_n, high=max_n, match="latest" if latest else "earliest")
    history = torch.tensor([[5] * (len(context) + 6), [*context, 1, 2, 3, 1, 2, 3]])
    drafter = NgramGpuDrafter(config, setting(limit))  # type: ignore[arg-type]
    draft = drafter.draft(torch.tensor([1]), torch.tensor([len(context)]), history, torch.tensor([k]))
    return draft.tokens[0, : draft.count[0]].tolist()


def setting(longest: int, device: str = "meta") -> DrafterSetup:
    """For a target on a device of which only its kind is asked: `ngram_gpu` has another drafter on a CPU."""
    target = SimpleNamespace(device=torch.device(device))
    return DrafterSetup(target, 8, longest, "float32", Path())  # type: ignore[arg-type]


def settings_of(k: int, low: int, high: int, match: str) -> SimpleNamespace:
    return SimpleNamespace(
        num_speculative_tokens=k, prompt_lookup_min=low, prompt_lookup_max=high, prompt_lookup_match=match
    )


@pytest.mark.parametrize(("latest", "vectors"), [(False, VECTORS), (True, LATEST)])
def test_worked_vectors(latest: bool, vectors: list[tuple[list[int], int, int, int, list[int]]]) -> None:
    for context, min_n, max_n, k, draft in vectors:
        assert ask(NgramIndex(min_n, max_n, latest), 0, context, k) == draft
        assert ask_tensors(context, min_n, max_n, k, 10_000, latest) == draft
        assert brute_force(context, min_n, max_n, k, 10_000, latest) == draft


@REPEATABLE
@given(
    context=CONTEXTS,
    min_n=st.integers(1, 4),
    extra=st.integers(0, 5),
    k=st.integers(0, 6),
    room=st.integers(-1, 8),
    latest=st.booleans(),
)
def test_every_context_agrees_with_brute_force(
    context: list[int], min_n: int, extra: int, k: int, room: int, latest: bool
) -> None:
    limit, max_n = len(context) + room, min_n + extra
    wanted = brute_force(context, min_n, max_n, k, limit, latest)
    assert ask(NgramIndex(min_n, max_n, latest), 0, context, k, limit) == wanted
    assert ask_tensors(context, min_n, max_n, k, limit, latest) == wanted


EVENTS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "append", "reset", "replace"]), st.integers(0, 2), CONTEXTS),
    max_size=12,
)


@REPEATABLE
@given(events=EVENTS, min_n=st.integers(1, 3), extra=st.integers(0, 3), latest=st.booleans())
def test_an_index_kept_across_steps_equals_one_made_anew(
    events: list[tuple[str, int, list[int]]], min_n: int, extra: int, latest: bool
) -> None:
    """Slots grow by any number of tokens, change hands with and without notice, and share one arena."""
    index = NgramIndex(min_n, min_n + extra, latest)
    texts: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for kind, slot, tokens in events:
        if kind == "append":
            texts[slot] = texts[slot] + tokens
        elif kind == "reset":
            index.reset(slot)
            texts[slot] = tokens
        else:  # another text of another length, unannounced; its end tells
            texts[slot] = [t + 3 for t in tokens[: len(texts[slot])]]
        wanted = brute_force(texts[slot], min_n, min_n + extra, 4, 10_000, latest)
        assert ask(index, slot, texts[slot], 4) == wanted


def test_equal_hashes_are_told_apart() -> None:
    """Tables of 64 lines and texts of hundreds of different n-grams: every search passes strangers."""
    rng = np.random.default_rng(0)
    for latest in (False, True):
        index = NgramIndex(1, 3, latest)
        text: list[int] = []
        for _ in range(60):
            text = text + rng.integers(0, 40, 7).tolist()
            assert ask(index, 0, text, 5) == brute_force(text, 1, 3, 5, 10_000, latest)


def test_long_texts_with_large_token_ids() -> None:
    rng = np.random.default_rng(1)
    text = rng.integers(2**31 - 50, 2**31, 3000).tolist()
    index = NgramIndex(2, 4)
    for length in (1, 2, 100, 2999, 3000):
        assert ask(index, 0, text[:length], 5) == brute_force(text[:length], 2, 4, 5, 10_000)


@REPEATABLE
@given(
    rows=st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=5),
    budget=st.lists(st.integers(0, 5), min_size=5, max_size=5),
    latest=st.booleans(),
)
def test_batch_is_one_by_one(rows: list[list[int]], budget: list[int], latest: bool) -> None:
    groups = len(rows)
    history = np.full((groups + 1, 12), 9, dtype=np.int64)
    for g, row in enumerate(rows):
        history[groups - g, : len(row)] = row
    tokens, counts = np.zeros((groups, 4), np.int64), np.zeros(groups, np.int64)
    slots, lengths = np.arange(groups, 0, -1), np.array([len(r) for r in rows])
    NgramIndex(1, 3, latest).propose(history, slots, slots, lengths, np.array(budget[:groups]), 100, tokens, counts)
    drafts = [tokens[g, : counts[g]].tolist() for g in range(groups)]
    wanted = [brute_force(row, 1, 3, min(most, 4), 100, latest) for row, most in zip(rows, budget, strict=False)]
    assert drafts == wanted


def test_nobodys_group_leaves_its_slot_alone() -> None:
    index = NgramIndex(2, 2)
    assert ask(index, 0, [1, 2, 3, 1, 2], 3) == [3, 1, 2]
    assert ask(index, 0, [], 3) == []
    assert ask(index, 0, [1, 2, 3, 1, 2], 3) == [3, 1, 2]


def test_tables_given_back_are_used_again() -> None:
    index = NgramIndex(1, 2)
    for slot in range(4):
        ask(index, slot, [1, 2] * 40, 3)
        index.reset(slot)
    held = index.bytes
    for slot in range(4):
        assert ask(index, slot, [2, 1] * 40, 3) == brute_force([2, 1] * 40, 1, 2, 3, 10_000)
        index.reset(slot)
    assert index.bytes == held
    index.reset(99)  # never seen


def test_wrong_sizes_are_refused() -> None:
    for low, high in ((0, 2), (3, 2)):
        with pytest.raises(ValueError, match="1 <= min_n <= max_n"):
            NgramIndex(low, high)


def test_tensor_lookup_keeps_its_shapes_and_stays_on_the_device() -> None:
    text = torch.zeros(3, 50, dtype=torch.int64, device="meta")  # reading a value from a meta tensor is an error
    lengths = torch.zeros(3, dtype=torch.int64, device="meta")
    assert continuation(text, lengths, 2, 4, latest=False).shape == (3,)


def test_both_drafters_agree_on_a_batch_with_a_prefill_in_it() -> None:
    history = torch.tensor([[1, 2, 3, 1, 2, 0], [4, 5, 6, 0, 0, 0], [7, 8, 9, 7, 8, 0], [0, 0, 0, 0, 0, 0]])
    slots, lengths = torch.tensor([0, 1, 2, 3]), torch.tensor([5, 3, 5, 0])
    for match in ("earliest", "latest"):
        config = settings_of(2, 2, 2, match)
        on_gpu, on_cpu = (NgramGpuDrafter(config, setting(64, device)) for device in ("meta", "cpu"))  # type: ignore[arg-type]
        assert isinstance(on_cpu, NgramDrafter) and not isinstance(on_gpu, NgramDrafter)
        for drafter in (NgramDrafter(config, setting(64)), on_gpu, on_cpu):  # type: ignore[arg-type]
            draft = drafter.draft(slots, lengths, history, torch.tensor([2, 2, 2, 2]))
            found = [draft.tokens[g, : draft.count[g]].tolist() for g in range(4)]
            assert found == [[3, 1], [], [9, 7], []]
            drafter.reset(0)


def test_drafter_fills_a_chain() -> None:
    config = resolve({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2})
    assert config is not None
    history = torch.tensor([[4, 5, 6, 0, 0], [1, 2, 3, 1, 2], [7, 8, 7, 8, 0]])
    slots, lengths = torch.tensor([1, 0, 2]), torch.tensor([5, 3, 4])
    draft = NgramDrafter(config, setting(64)).draft(slots, lengths, history, torch.tensor([2, 2, 1]))
    assert draft.count.tolist() == [2, 0, 1]
    assert draft.tokens[0].tolist() == [3, 1]
    assert draft.tokens[2, 0] == 7
    assert draft.parents.tolist() == [[-1, 0]] * 3


def test_drafter_stops_at_the_longest_text() -> None:
    config = resolve({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 1})
    assert config is not None
    history, slots, lengths = torch.tensor([[1, 2, 3, 1]]), torch.tensor([0]), torch.tensor([4])
    counts = {
        limit: int(NgramDrafter(config, setting(limit)).draft(slots, lengths, history, torch.tensor([3])).count)
        for limit in (3, 4, 5, 6, 9)
    }
    assert counts == {3: 0, 4: 0, 5: 1, 6: 2, 9: 3}
