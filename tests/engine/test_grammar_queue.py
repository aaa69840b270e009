"""Turns between clients who wait for their grammars, against a model of them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from augury.engine.grammar_queue import FairQueue

Job = tuple[str, int]
CLIENTS = st.sampled_from("xyz")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 6), st.lists(CLIENTS | st.just("take"), max_size=60))
def test_nobody_waits_for_more_than_one_job_of_each_other_client(size: int, moves: list[str]) -> None:
    queue: FairQueue[Job] = FairQueue(size)
    waiting: list[Job] = []
    overtaken: dict[Job, Counter[str]] = {}
    for number, move in enumerate(moves):
        if move != "take":
            waiting.append((move, number))
            left_out = queue.push(move, (move, number))
            lengths = Counter(client for client, _ in waiting)
            assert (left_out is not None) == (len(waiting) > size)
            if left_out is not None:
                assert lengths[left_out[0]] == max(lengths.values())
                assert left_out == [job for job in waiting if job[0] == left_out[0]][-1]
                waiting.remove(left_out)
        elif waiting:
            job = queue.pop(lambda job: True)
            assert job is not None and job == next(other for other in waiting if other[0] == job[0])
            waiting.remove(job)
            for first in dict(reversed([(c, (c, n)) for c, n in waiting])).values():
                if first[0] != job[0]:
                    overtaken.setdefault(first, Counter())[job[0]] += 1
                    assert overtaken[first][job[0]] <= 2  # its turn may have been just over
        else:
            assert queue.pop(lambda job: True) is None
        assert len(queue) == len(waiting)


def test_a_job_that_does_not_fit_gives_way_and_one_that_was_lost_comes_first() -> None:
    queue: FairQueue[Job] = FairQueue(10)
    for job in (("x", 1), ("x", 2), ("y", 3), ("x", 4)):
        assert queue.push(job[0], job) is None
    assert queue.pop(lambda job: job[1] != 1) == ("x", 2)  # the large one waits, its client's next does not
    queue.push_front("x", ("x", 2))
    assert [queue.pop(lambda job: True) for _ in range(4)] == [("x", 2), ("y", 3), ("x", 1), ("x", 4)]
    for job in (("x", 5), ("y", 6), ("x", 7)):
        queue.push(job[0], job)
    assert queue.take(lambda job: job[0] == "x") == [("x", 5), ("x", 7)] and len(queue) == 1
