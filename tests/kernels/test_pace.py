"""When threads together are given up, and for how long."""

from augury.kernels.pace import PROBE, ThreadTimings, kind_of

ALONE, QUICK = 0.0004, 0.0002  # seconds a call on one thread, and on two that have their cores
KIND = kind_of(1, 100, 3)


def run(pace: ThreadTimings, together: list[float], first: float = ALONE, layers: int = 1) -> list[int]:
    """How many threads each layer had, when those on two threads take so long; `layers` may run in one call."""
    now, had = 0.0, []
    while len(had) < len(together):
        threads, count = pace.begin(KIND, 1, 2, layers, now)
        assert 1 <= count <= layers
        took = sum(together[len(had) : len(had) + count]) if threads == 2 else (ALONE if had else first) * count
        had += [threads] * count
        now += took
        pace.took(KIND, 1, threads, count, took, now)
    return had


def test_a_quiet_machine_and_a_hiccup_now_and_then() -> None:
    had = run(ThreadTimings(), ([QUICK] * 200 + [0.02]) * 20)
    assert had[0] == 1 and had.count(1) == 1 + len(had) // PROBE


def test_threads_that_lose_their_cores_are_given_up_and_tried_again() -> None:
    had = run(ThreadTimings(), [0.01] * 20_000)
    assert 2 in had[:10] and 2 in had[4_000:]
    assert had.count(2) < 0.01 * len(had)


def test_layers_in_one_call_are_few_until_threads_have_shown_that_they_win() -> None:
    """Nobody looks at a clock within a call: where threads lose, one must not run thirty layers."""
    quiet = ThreadTimings()
    had = run(quiet, [QUICK] * 20_000, layers=30)
    assert had.count(1) <= 2 + len(had) // PROBE and quiet.begin(KIND, 1, 2, 30, 0.0) == (2, 30)
    assert quiet.begin(kind_of(64, 100, 3), 64, 2, 30, 0.0) == (1, 1)  # of another kind nothing is known
    crowded = run(ThreadTimings(), [0.01] * 20_000, layers=30)
    assert 2 in crowded[:10] and 2 in crowded[4_000:] and crowded.count(2) < 0.01 * len(crowded)


def test_a_call_takes_no_longer_than_threads_may_lose() -> None:
    pace = ThreadTimings(together=PROBE)
    prompt = kind_of(512, 100, 3)
    pace.took(prompt, 512, 1, 1, 0.02, 0.0)
    assert pace.begin(prompt, 512, 2, 30, 1.0) == (2, 1)
    pace.took(KIND, 1, 1, 1, 0.001, 1.0)
    assert pace.begin(KIND, 1, 2, 100, 1.0) == (2, 30)


def test_a_first_call_that_compiled_its_code_is_not_believed_for_long() -> None:
    had = run(ThreadTimings(), [0.01] * 20_000, first=40.0)
    assert had[10 * PROBE :].count(2) < 0.01 * len(had)


def test_calls_are_compared_with_their_own_kind() -> None:
    pace, prompt = ThreadTimings(), kind_of(300, 40_000, 3)
    assert prompt == kind_of(400, 50_000, 3) != kind_of(600, 50_000, 3)
    assert len({kind_of(rows, 100, 3) for rows in range(1, 9)}) == 8
    for n in range(1_000):
        for kind, rows in (KIND, 1), (prompt, 300 + n % 100):
            pace.took(kind, rows, 1, 1, rows * ALONE, n)
            pace.took(kind, rows, 2, 1, rows * QUICK, n)
    assert pace.lost == 0
    assert pace.begin(prompt, 350, 2, 1, 1_000) == pace.begin(KIND, 1, 2, 1, 1_000) == (2, 1)
