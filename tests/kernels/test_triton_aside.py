"""What is put aside for a drafter that rests: Triton's kernels (interpreted on a CPU) against the torch code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")
import interpreter  # noqa: F401
from step_cases import DEVICE, quick, with_face

from augury.engine.aside import FEWEST, LINES, Aside

SLOTS, HIDDEN = 5, 1030  # more than one program's share of a row


def made() -> Aside:
    length = torch.zeros(SLOTS + 1, dtype=torch.int64, device=DEVICE)
    state: Any = SimpleNamespace(length=length, padding_slot=SLOTS)
    drafter: Any = SimpleNamespace(bytes_per_token=8)
    return Aside(state, drafter, 4)


def keep(aside: Aside, table: Tensor, row_begin: Tensor, features: tuple[Tensor, ...]) -> None:
    segments: Any = SimpleNamespace(slots=table[0], num_new_tokens=table[2], table=table)
    aside._keep(segments, row_begin, features)


@quick(10)
@given(st.lists(st.tuples(st.permutations(range(SLOTS)), st.lists(st.booleans(), min_size=3, max_size=3)), max_size=6))
def test_lines_are_the_references(passes: list[tuple[list[int], list[bool]]]) -> None:
    """Three groups a pass and one of padding; a group whose request has ended runs nothing."""
    mine, reference = made(), made()
    for slots, ran in [([0, 1, 2], [True, True, False]), *passes]:
        table = torch.zeros(8, 4, dtype=torch.int64, device=DEVICE)
        table[0] = torch.tensor([*slots[:3], SLOTS])
        table[2, :3] = torch.tensor(ran)
        row_begin = table[2].cumsum(0) - table[2]
        wide = torch.randn(6, HIDDEN + 2, device=DEVICE)
        features = wide[:, :HIDDEN], torch.randn(6, 3, device=DEVICE)  # a row need not end where the next begins
        with_face("triton", keep, mine, table, row_begin, features)
        with_face("torch", keep, reference, table, row_begin, features)
    assert mine._count[:SLOTS].tolist() == reference._count[:SLOTS].tolist()
    for one, other in zip(mine._features, reference._features, strict=True):
        assert torch.equal(one[: SLOTS * LINES], other[: SLOTS * LINES])


def test_lines_are_fewer_where_they_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(most_bytes: int) -> int:
        monkeypatch.setattr("augury.engine.aside.MOST_BYTES", most_bytes)
        aside = made()
        aside._allocate((torch.zeros(1, 10), torch.zeros(1, 10)))
        assert [len(stream) for stream in aside._features] == [(SLOTS + 1) * aside._lines] * 2
        return aside._lines

    assert lines(1 << 30) == LINES
    assert lines(80 * (SLOTS + 1) * 20) == 20
    assert lines(1) == FEWEST
