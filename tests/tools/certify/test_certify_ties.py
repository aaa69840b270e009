"""Near-ties where a server lists only the token that it took, as under a grammar."""

from __future__ import annotations

import pytest

from augury.tools.certify.ties import parted
from augury.tools.shared.endpoint import Completion


def answer(token: str, score: float, others: float) -> Completion:
    """`[` and then one token far below the likeliest, which a grammar forbids."""
    return Completion(("[", token), ({"[": 0.0}, {" The": others, token: score}))


@pytest.mark.parametrize(
    ("plain", "fast", "others", "near"),
    [
        (-5.32, -5.43, -0.07, True),  # 0.11 from each other, and the runs 0.07 apart
        (-5.32, -5.43, -0.20, False),  # the runs are so far apart that nothing can be said
        (-5.32, -5.90, -0.01, False),  # no tie
    ],
)
def test_a_gap_that_only_has_a_bound(plain: float, fast: float, others: float, near: bool) -> None:
    found = parted(answer("a", plain, 0.0), answer("b", fast, others))
    assert found is not None and found.position == 1 and found.gap is None and found.near_tie is near
    sampled = parted(answer("a", plain, 0.0), answer("b", fast, others), greedy=False)
    assert sampled is not None and not sampled.near_tie


def test_a_token_that_would_have_been_listed_is_no_tie() -> None:
    """Each took its own likeliest token with the same score; the other one must be far below what is listed."""
    found = parted(
        Completion(("a",), ({"a": -0.4, "c": -1.4, "d": -2.4},)),
        Completion(("b",), ({"b": -0.4, "c": -1.4, "d": -2.4},)),
    )
    assert found is not None and found.apart == 0 and not found.near_tie


def test_without_any_score_in_common_nothing_is_explained() -> None:
    found = parted(Completion(("a",), ({"a": -5.0},)), Completion(("b",), ({"b": -5.0},)))
    assert found is not None and not found.near_tie
