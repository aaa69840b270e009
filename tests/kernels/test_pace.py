"""When threads together are given up, and for how long."""

from augury.kernels.pace import Pace

QUICK = 0.0002  # seconds a call on two threads


def run(pace: Pace, taken: list[float]) -> list[int]:
    """How many threads each call had, when those on two threads take so long, and one alone twice the quickest."""
    now, had = 0.0, []
    for seconds in taken:
        threads = pace.threads(2, now)
        had.append(threads)
        now += seconds if threads == 2 else 2 * QUICK
        if threads == 2:
            pace.took("size", 2, seconds, now)
    return had


def test_a_quiet_machine_and_a_hiccup_now_and_then() -> None:
    assert set(run(Pace(), ([QUICK] * 200 + [0.02]) * 20)) == {2}


def test_threads_that_lose_their_cores_are_given_up_and_tried_again() -> None:
    had = run(Pace(), [QUICK] + [0.01] * 20_000)
    assert had[:5] == [2, 2, 2, 2, 2] and 1 in had and 2 in had[10:]
    assert had.count(2) < 0.01 * len(had)


def test_sizes_are_compared_with_their_own_best() -> None:
    pace = Pace()
    for n in range(1_000):
        pace.took("few rows", 2, QUICK, n)
        pace.took("a prompt", 2, 1_000 * QUICK, n)
    assert pace.lost == 0 and pace.threads(2, 1_000) == 2
