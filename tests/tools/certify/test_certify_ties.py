"""Near-ties where a server lists only the token that it took, as under a grammar."""

from __future__ import annotations

import pytest

from augury.tools.certify.suite.ask import Said
from augury.tools.certify.suite.cells import Broken
from augury.tools.certify.suite.pair import PairTally
from augury.tools.certify.ties import TOLERANCE, parted
from augury.tools.shared.endpoint import Completion


def answer(token: str, score: float, others: float) -> Completion:
    """`[` and then one token far below the likeliest, which a grammar forbids."""
    return Completion(("[", token), ({"[": 0.0}, {" The": others, token: score}))


def said_of(token: str, score: float, finish: str, listed: bool = True) -> Said:
    """An answer as a server gives it, with its tokens or without."""
    whole = answer(token, score, -9.0)
    return Said(f"[{token}", whole if listed else whole.joined(), finish, {})


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


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (said_of("a", -0.1, "length"), "with the same tokens, but finish_reason 'length' instead of 'stop'"),
        (said_of("b", -5.0, "stop"), "first at token 2"),
        (said_of("b", -5.0, "stop", listed=False), "unexplained: no tokens are listed"),
    ],
)
def test_a_red_cell_says_where_answers_differ(got: Said, says: str) -> None:
    tally = PairTally(TOLERANCE)
    tally.same("greedy", "Hi", said_of("a", -0.1, "stop"), got)
    with pytest.raises(Broken, match=f"greedy: 1 of 1 answers differ, {says}") as raised:
        tally.figures()
    assert raised.value.evidence["finish"] == ["stop", got.finish]
