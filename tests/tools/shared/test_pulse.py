"""Progress in pipes: lines on standard error, and times as people read them."""

from __future__ import annotations

import threading

import pytest

from augury.tools.shared.pulse import Count, pulse, time_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0015, "1.5 ms"),
        (0.05, "50 ms"),
        (0.3111, "311 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (3.11, "3.1 s"),
        (9.96, "10 s"),
        (59.6, "60 s"),
        (100.0, "1 min 40 s"),
        (120.0, "2 min"),
        (3599.6, "1 h"),
        (5400.0, "1 h 30 min"),
    ],
)
def test_times_are_in_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_lines_come_while_the_work_goes_on_and_not_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    twice, said = threading.Event(), 0

    def says() -> str:
        nonlocal said
        said += 1
        if said == 2:
            twice.set()
        return f"line {said}"

    with pulse(says, every=0.001):
        assert twice.wait(60)
    assert capsys.readouterr().err.splitlines() == [f"line {number + 1}" for number in range(said)]


def test_nothing_is_said_where_a_bar_is_or_quiet_is_asked_for() -> None:
    before = threading.active_count()
    with pulse(lambda: "never", quiet=True, every=0.0):
        assert threading.active_count() == before


def test_a_line_has_what_is_done_and_what_is_left() -> None:
    clock = iter([10.0, 12.0, 40.0, 70.0])
    count = Count("racing", 4, lambda: next(clock))
    assert count.line() == "racing: 0 of 4, 2 s so far"
    count.done = 1
    assert count.line() == "racing: 1 of 4, 30 s so far, about 90 s left"
    count.done = 4
    assert count.line() == "racing: 4 of 4, 60 s so far"
