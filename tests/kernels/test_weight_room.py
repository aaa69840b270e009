"""Room for weights: whole cache lines, zeros, nobody else's bytes, and gone with the last who has some."""

from __future__ import annotations

import gc
import mmap
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.kernels import weight_room
from augury.kernels.weight_room import LINE, TAKEN, WeightRoom


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3000), st.sampled_from(["u1", "i1", "f4"])), max_size=40))
def test_parts_are_aligned_empty_and_apart(wanted: list[tuple[int, int, str]]) -> None:
    room = WeightRoom()
    made = [room.zeros((lines, width), kind) for lines, width, kind in wanted]
    for n, part in enumerate(made):
        assert part.shape == wanted[n][:2] and not part.any()
        assert not part.size or part.ctypes.data % LINE == 0
        part[...] = n + 1
    assert all((part == n + 1).all() for n, part in enumerate(made))


def test_more_than_is_taken_at_a_time_is_one_piece() -> None:
    part = WeightRoom().zeros((3, TAKEN), np.uint8)
    assert part.flags.c_contiguous and part.shape == (3, TAKEN)


def test_memory_goes_with_the_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched(mmap.mmap):
        """One that can be asked after."""

    made = list[Any]()

    def make(*given: Any, **named: Any) -> Any:
        memory = Watched(*given, **named)
        made.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(weight_room.mmap, "mmap", make)
    room = WeightRoom()
    first, second = room.zeros((TAKEN,), np.uint8), room.zeros((TAKEN + 1,), np.uint8)
    assert len(made) == 2 and first is not None
    del first
    gc.collect()
    assert made[0]() is None and made[1]() is not None and second is not None
