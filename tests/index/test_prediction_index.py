"""Where an answer stands in the text its client expects."""

from __future__ import annotations

from random import Random

import pytest

from augury.index.prediction import ALLOWANCE, EARNED, LONGEST, MOST, SHARE, PredictedText, PredictionFollower

TEXT = list(range(100, 200))  # no token twice


def walk(expected: list[int], answer: list[int], most: int = LONGEST) -> tuple[PredictionFollower, int, int]:
    """Decode an answer that is known, guess by guess, as an engine would; passes and wrong guesses."""
    follower, at, passes, wrong, guesses = PredictionFollower(PredictedText(expected)), 0, 0, 0, list[int]()
    while at < len(answer):
        accepted = 0
        while accepted < len(guesses) and guesses[accepted : accepted + 1] == answer[at + accepted : at + accepted + 1]:
            accepted += 1
        follower.judged(len(guesses), accepted)
        wrong += len(guesses) - accepted
        follower.follow(answer[at : at + accepted + 1])
        at, passes, guesses = at + accepted + 1, passes + 1, follower.guesses(most)
    return follower, passes, wrong


def test_an_answer_as_expected_takes_few_passes() -> None:
    follower, passes, wrong = walk(TEXT, TEXT)
    assert passes <= 2 + -(-len(TEXT) // (LONGEST + 1))
    assert wrong == 0
    assert (follower.accepted, follower.rejected) == (len(TEXT), 0)


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        ([*TEXT[:40], 7, *TEXT[41:]], 99),  # a token replaced
        ([*TEXT[:40], 7, 8, 9, *TEXT[40:]], 100),  # three put in
        (TEXT[:40] + TEXT[43:], 97),  # three left out
        (TEXT[:40] + TEXT[90:], 50),  # half of it left out
        ([7, 8, 9, *TEXT], 100),  # an opening of its own
        (TEXT[50:] + TEXT[:50], 100),  # the halves changed places
        (TEXT[:40] + [7] * 60, 40),
        ([7] * 60, 0),
        (TEXT + [7] * 9, 100),  # it goes on after the end
    ],
)
def test_the_place_is_found_again(answer: list[int], accepted: int) -> None:
    follower, passes, _ = walk(TEXT, answer)
    assert (follower.accepted, follower.rejected) == (accepted, len(TEXT) - accepted)
    fresh = len(answer) - accepted  # each of which takes a pass
    assert passes <= fresh + 8 + accepted // LONGEST


def test_one_token_tells_only_close_by() -> None:
    expected = PredictedText(TEXT)
    assert expected.find([7, 143], 40) == (44, 1)
    assert expected.find([7, 190], 40) == (-1, 0)
    assert expected.find([189, 190], 40) == (91, 2)
    assert expected.find([109, 110], 40) == (-1, 0)  # two tokens behind, where the answer has been
    assert expected.find([108, 109, 110], 40) == (11, 3)
    assert expected.find([], 40) == (-1, 0)


def test_most_agreement_wins_then_the_nearest_ahead() -> None:
    expected = PredictedText([1, 2, 3, 9, 5, 2, 3, 8, 4, 2, 3, 7])
    assert expected.find([4, 2, 3], 0) == (11, 3)
    assert expected.find([6, 2, 3], 4) == (7, 2)


@pytest.mark.parametrize("seed", range(4))
def test_a_wrong_prediction_has_a_bounded_price(seed: int) -> None:
    random = Random(seed)  # few different tokens, so that places are found again and again, and mean nothing
    expected, answer = ([random.randrange(12) for _ in range(400)] for _ in range(2))
    follower, passes, wrong = walk(expected, answer)
    gained = len(answer) - passes
    assert wrong <= ALLOWANCE + SHARE * len(answer) + EARNED * gained
    assert follower.accepted + follower.rejected == 400


def test_a_long_success_does_not_pay_for_a_long_failure() -> None:
    _, _, wrong = walk(TEXT * 20, TEXT * 20 + [TEXT[i % 3] for i in range(1000)])
    assert wrong <= MOST + SHARE * 1000 + EARNED * 20


def test_tokens_after_the_end_of_an_answer_do_not_count() -> None:
    follower = PredictionFollower(PredictedText(TEXT))
    follower.follow(TEXT[:10])
    follower.unread(4)
    assert follower.accepted == 4


def test_a_bound_is_kept() -> None:
    follower = PredictionFollower(PredictedText(TEXT))
    follower.follow(TEXT[:8])
    assert follower.guesses(3) == TEXT[8:11]
    assert follower.guesses(0) == []
    assert follower.sure
