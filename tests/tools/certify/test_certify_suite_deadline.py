"""A stream has a deadline as a whole: a server that only shows that it lives gets red cells, and the run goes on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from promising import Promising, serving

from augury.tools.certify.suite.ask import Peer
from augury.tools.certify.suite.cells import GREEN, RED, Subject
from augury.tools.certify.suite.pair import Pair, SuitePlan
from augury.tools.certify.suite.run import run_suites, words
from augury.tools.shared import http
from augury.tools.shared.endpoint import Endpoint

LOOK = 5.0  # seconds that pass with every look at the clock; an ordinary answer takes a few looks


class Clock:
    """Time that passes by being looked at."""

    def __init__(self) -> None:
        self._times: Iterator[float] = (LOOK * i for i in count())

    def monotonic(self) -> float:
        return next(self._times)


@pytest.mark.parametrize("pings", [b": ping\n\n", b"."], ids=["lines", "a line that never ends"])
def test_a_stream_of_pings_ends_with_the_timeout(pings: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(http, "time", Clock())
    fast = Promising()
    fast.pings = pings
    with serving(fast) as url, serving(Promising()) as baseline:
        peers = [Peer(Endpoint("--url", at), 4) for at in (url, baseline)]
        plan = SuitePlan(max_tokens=4, in_flight=2, long_words=100)
        suites = ["greedy", "stream", "n"]
        cells = run_suites(Pair(peers[0], peers[1], plan), Subject("vLLM", "0.28.0", "toy", "mtp"), suites)
    assert [cell.verdict for cell in cells] == [GREEN, RED, GREEN], cells
    assert cells[1].reason == "/v1/completions: the stream did not end within 120 s."
    assert cells[1].evidence["plain_too"] is False


def test_one_of_a_kind() -> None:
    assert words({"answers": 16, "tokens": 1, "near_ties": 0, "preemptions": 1}) == (
        "16 answers, 1 token, 0 near-ties, 1 preemption"
    )
