"""Threads of one loop that meet inside it, and a loop that has fewer threads than it asked for."""

import numpy as np
import pytest
from numba import config, njit, prange, set_num_threads

from augury.kernels.crew_numba import PLACES, all_here, left_alone, meet
from augury.kernels.threads import share_pool

MEETINGS = 50


@njit(parallel=True, nogil=True)
def add_in_turns(threads: int, crew: np.ndarray, numbers: np.ndarray) -> None:
    """Every thread adds up what all have written before; without meetings some would read too early."""
    for share in prange(threads):
        if all_here(crew, threads):
            met = 0
            for turn in range(MEETINGS):
                numbers[turn + 1, share] = numbers[turn].sum() + share
                met = meet(crew, threads, met)


def expected(threads: int) -> np.ndarray:
    """The same, one after the other."""
    numbers = np.zeros((MEETINGS + 1, threads), np.int64)
    numbers[0] = 1
    for turn in range(MEETINGS):
        numbers[turn + 1] = numbers[turn].sum() + np.arange(threads)
    return numbers


@pytest.mark.parametrize("threads", [1, min(2, config.NUMBA_NUM_THREADS)])  # type: ignore[attr-defined]  # or one core
def test_nobody_goes_on_before_all_are_there(threads: int) -> None:
    share_pool()
    set_num_threads(threads)
    together = 0
    while together < 20:  # on a crowded machine a thread may come too late
        crew, numbers = np.zeros(PLACES, np.int64), expected(threads)
        numbers[1:] = 0
        add_in_turns(threads, crew, numbers)
        together += not left_alone(crew)
        done = numbers[1:] if left_alone(crew) else numbers - expected(threads)
        assert not done.any()


def test_where_a_thread_does_not_come_nobody_begins() -> None:
    share_pool()
    set_num_threads(1)
    crew, numbers = np.zeros(PLACES, np.int64), np.zeros((MEETINGS + 1, 2), np.int64)
    add_in_turns(2, crew, numbers)  # one thread has both rounds of the loop, one after the other
    assert left_alone(crew) and not numbers.any()
