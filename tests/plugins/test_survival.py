"""A request drafts as far as its drafts have been right, and is asked again now and then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from augury.plugins.vllm.survival import PROBE_EVERY, Survival


def test_a_new_request_drafts_all() -> None:
    assert Survival(4).worth(0.5) == 4


def test_drafts_end_where_they_stop_being_right() -> None:
    known = Survival(4)
    for _ in range(40):
        known.see(4, 2)
    assert known.worth(0.1) == 2


def test_who_drafts_nothing_is_asked_now_and_then() -> None:
    known = Survival(3)
    for _ in range(40):
        known.see(3, 0)
    said = [known.worth(0.1) for _ in range(2 * PROBE_EVERY)]
    assert said == 2 * ([0] * (PROBE_EVERY - 1) + [1])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=30), st.floats(0.01, 0.99))
def test_dearer_rows_are_never_more(fates: list[tuple[int, int]], cost: float) -> None:
    known = Survival(4)
    for drafted, accepted in fates:
        known.see(drafted, min(drafted, accepted))
    dear = known.worth(cost)
    known.silent = 0
    assert dear <= known.worth(cost / 2)
