"""When threads together are given up, and for how long."""

from augury.kernels.pace import PROBE, ThreadTimings, kind_of

ALONE, QUICK = 0.0004, 0.0002  # seconds a call on one thread, and on two that have their cores
KIND = kind_of(1, 100, 3)


def run(pace: ThreadTimings, together: list[float], first: float = ALONE) -> list[int]:
    """How many threads each call had, when those on two threads take so long."""
    now, had = 0.0, []
    for n, seconds in enumerate(together):
        threads = pace.threads(KIND, 2, now)
        had.append(threads)
        took = seconds if threads == 2 else first if n == 0 else ALONE
        now += took
        pace.took(KIND, 1, threads, took, now)
    return had


def test_a_quiet_machine_and_a_hiccup_now_and_then() -> None:
    had = run(ThreadTimings(), ([QUICK] * 200 + [0.02]) * 20)
    assert had[0] == 1 and had.count(1) == 1 + len(had) // PROBE


def test_threads_that_lose_their_cores_are_given_up_and_tried_again() -> None:
    had = run(ThreadTimings(), [0.01] * 20_000)
    assert 2 in had[:10] and 2 in had[4_000:]
    assert had.count(2) < 0.01 * len(had)


def test_a_first_call_that_compiled_its_code_is_not_believed_for_long() -> None:
    had = run(ThreadTimings(), [0.01] * 20_000, first=40.0)
    assert had[10 * PROBE :].count(2) < 0.01 * len(had)


def test_calls_are_compared_with_their_own_kind() -> None:
    pace, prompt = ThreadTimings(), kind_of(300, 40_000, 3)
    assert prompt == kind_of(400, 50_000, 3) != kind_of(600, 50_000, 3)
    assert len({kind_of(rows, 100, 3) for rows in range(1, 9)}) == 8
    for n in range(1_000):
        for kind, rows in (KIND, 1), (prompt, 300 + n % 100):
            pace.took(kind, rows, 1, rows * ALONE, n)
            pace.took(kind, rows, 2, rows * QUICK, n)
    assert pace.lost == 0 and pace.threads(prompt, 2, 1_000) == pace.threads(KIND, 2, 1_000) == 2
