"""Our look-up drafters in the place of vLLM's: the same drafts, whatever happens to the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_lookup_config import configuration

from augury.plugins.vllm.lookup import LatestNgram, Ngram, Suffix
from augury.plugins.vllm.seats import Seats

LIMIT = 64


def by_hand(text: list[int], latest: bool = False) -> list[int]:
    """vLLM's rule, word for word: the longest n first, of several matches the first, at most three tokens behind it."""
    for n in (3, 2):
        tail = text[-n:]
        places = [i for i in range(len(text) - n) if text[i : i + n] == tail]
        if len(text) > n and places:
            place = places[-1 if latest else 0]
            return text[place + n : place + n + 3][: LIMIT - len(text)]
    return []


class Batch:
    """Rows as vLLM keeps them: requests come, grow, change places, wait and leave."""

    def __init__(self) -> None:
        self.texts: list[list[int]] = []

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Lengths and token ids; what stands behind a text is an older row's."""
        ids = np.full((4, LIMIT), 7, np.int32)
        for row, text in enumerate(self.texts):
            ids[row, : len(text)] = text
        return np.array([len(text) for text in self.texts], np.int32), ids


@pytest.mark.parametrize("made, latest", [(Ngram, False), (LatestNgram, True)])
@given(data=st.data())
def test_drafts_are_those_of_the_rule(made: type[Ngram], latest: bool, data: st.DataObject) -> None:
    drafter, batch = made(configuration(LIMIT)), Batch()
    tokens = st.lists(st.integers(0, 3), min_size=1, max_size=4)
    for _ in range(data.draw(st.integers(1, 12))):
        if len(batch.texts) < 4 and data.draw(st.booleans()):
            batch.texts.append(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=20)))
        elif batch.texts and data.draw(st.booleans()):
            batch.texts.pop(data.draw(st.integers(0, len(batch.texts) - 1)))
        batch.texts = data.draw(st.permutations(batch.texts))
        new = [data.draw(tokens) if data.draw(st.integers(0, 4)) else [] for _ in batch.texts]
        new = [more[: LIMIT - len(text)] for more, text in zip(new, batch.texts, strict=True)]
        batch.texts = [text + more for text, more in zip(batch.texts, new, strict=True)]
        found = drafter.propose(new, *batch.arrays())
        expected = [by_hand(t, latest) if more else [] for t, more in zip(batch.texts, new, strict=True)]
        assert found == expected


def test_suffix_drafts_what_another_request_was_answered() -> None:
    drafter = Suffix(configuration(LIMIT))
    answer = [11, 12, 13, 14, 15, 16]
    ids = np.zeros((4, LIMIT), np.int32)
    text = [1, 2, 3]
    for token in answer:
        text.append(token)
        ids[0, : len(text)] = text
        drafter.propose([[token]], np.array([len(text)]), ids)
    ids[0, :4] = [5, 6, 11, 12]
    assert drafter.propose([[12]], np.array([4]), ids) == [[13, 14]]  # a draft is as long as its match: the factor is 1


def test_rehearsal_leaves_nothing() -> None:
    drafter = Suffix(configuration(LIMIT))
    assert drafter.cache.cached == [] and drafter.cache.active == []


def test_suffix_is_kept_in_a_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUGURY_SUFFIX_CACHE", str(tmp_path / "answers"))
    drafter = Suffix(configuration(LIMIT))
    ids = np.zeros((4, LIMIT), np.int32)
    ids[0, :5] = [1, 2, 31, 32, 33]
    drafter.propose([[31, 32, 33]], np.array([5]), ids)
    drafter.keep()
    later = Suffix(configuration(LIMIT))
    ids[0, :3] = [9, 31, 32]
    assert later.propose([[32]], np.array([3]), ids) == [[33]]


def test_a_moved_row_keeps_its_seat_and_the_oldest_gives_way() -> None:
    left: list[int] = []
    seats = Seats(3, left.append)
    texts = np.arange(40).reshape(4, 10)
    first = seats.find(texts, [0, 1], [4, 4], [5, 5])
    moved = seats.find(texts[[1, 0, 2, 3]], [0, 1], [5, 5], [6, 6])
    assert [new for _, new in first] == [True, True]
    assert moved == [(first[1][0], False), (first[0][0], False)]
    seats.find(texts, [2], [4], [5])
    (seat, new), *_ = seats.find(texts, [3], [4], [5])
    assert new and left == [seat] == [first[1][0]]
