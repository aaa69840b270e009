"""Grammars' processes: who is killed from outside, whose turn it is, and what is kept."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grammar_cases import gbnf_chain, long_gbnf
from grammar_pools import SMALL, A, accepts, ask, bring, children, may, server_pid, start

from augury import SamplingParams
from augury.config.errors import ConfigError
from augury.engine import grammar_pool
from augury.engine.grammar import Grammars
from augury.engine.grammar_jobs import Busy
from augury.engine.grammar_limits import GrammarLimits
from augury.model.tokenizer import Tokenizer
from augury.serve.compiling import Compiler


@pytest.fixture(scope="module")
def tokenizer(toy_model: Path) -> Tokenizer:
    return Tokenizer(toy_model)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, 260)


@pytest.fixture
def fresh(tokenizer: Tokenizer) -> Grammars:
    """For tests that kill: with no fork server yet, and time for a machine ten times slower."""
    return Grammars(tokenizer, 260, GrammarLimits(compile_seconds=100.0))


# --- who is killed from outside -------------------------------------------------------------------------------------


def test_a_compilation_that_is_killed_is_tried_again(fresh: Grammars) -> None:
    ticket = ask(fresh, {"grammar": gbnf_chain(1500)})
    bring(fresh, lambda: bool(fresh.pool._compiling))
    server = server_pid(fresh)
    bring(fresh, lambda: bool(children(server)))
    os.kill(children(server)[0], signal.SIGKILL)
    bring(fresh, lambda: ticket.done)
    assert ticket.process().mask and fresh.pool.counts["retried"] == 1 and server_pid(fresh) == server


def test_a_fork_server_that_is_killed_is_replaced(fresh: Grammars) -> None:
    idle = start(fresh, SMALL)
    ticket = ask(fresh, {"grammar": gbnf_chain(1500)})
    bring(fresh, lambda: bool(fresh.pool._compiling))
    server = server_pid(fresh)
    os.kill(server, signal.SIGKILL)
    bring(fresh, lambda: ticket.done)
    assert ticket.process().mask and server_pid(fresh) != server
    assert idle.consume(A) and "ask again" in str(idle.error)
    assert accepts(fresh, SMALL, "aba")  # compiled anew


def test_one_that_the_system_kills_every_time_is_not_refused_for_good(fresh: Grammars) -> None:
    ticket = ask(fresh, {"grammar": gbnf_chain(3000)})
    bring(fresh, lambda: bool(fresh.pool._servers and fresh.pool._servers[0].ready))
    while not ticket.done:
        fresh.pool.poll(0.01)
        for pid in children(server_pid(fresh)):
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(Busy, match="try again"):
        ticket.process()
    assert start(fresh, {"grammar": gbnf_chain(300)}).error is None


def test_processes_end_with_the_engine(tokenizer: Tokenizer) -> None:
    grammars = Grammars(tokenizer, 260)
    start(grammars, SMALL)
    server = grammars.pool._servers[0].process
    (child,) = children(server.pid)
    assert len(list(Path(f"/proc/{server.pid}/task").iterdir())) == 1  # or forking it would not be safe
    del grammars
    assert server.wait(120) == 0
    limit = time.monotonic() + 20
    while Path(f"/proc/{child}/cmdline").exists() and time.monotonic() < limit:
        time.sleep(0.01)
    assert not Path(f"/proc/{child}/cmdline").exists()


# --- turns, and what is kept ----------------------------------------------------------------------------------------


def test_two_large_grammars_hold_up_no_small_one(grammars: Grammars) -> None:
    start(grammars, SMALL)
    large = [ask(grammars, {"grammar": long_gbnf(478_000 - i)}, "attacker") for i in range(2)]
    small = ask(grammars, {"json": {"type": "object", "properties": {"innocent": {"type": "null"}}}}, "innocent")
    bring(grammars, lambda: small.done)
    assert small.process().mask and not large[0].done and not large[1].done
    waiting = [job for job in grammars.pool._jobs.values() if not job.begun]
    assert [job.tickets for job in waiting] == [[large[1]]]
    grammars.pool.forget(large[1])
    bring(grammars, lambda: large[0].done)
    with pytest.raises(ConfigError, match="takes more than 5 seconds"):
        large[0].process()


def test_whoever_has_no_room_or_waits_too_long_may_come_again(fresh: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh.pool._queue._size = 2
    tickets = [ask(fresh, {"regex": f"a{{{i}}}"}, client) for i, client in enumerate(("x", "x", "x", "y"), 1)]
    assert [ticket.done for ticket in tickets] == [False, True, True, False]  # y is let in, and x's newest is not
    for ticket in tickets[1:3]:
        with pytest.raises(Busy, match="try again"):
            ticket.process()
    monkeypatch.setattr(grammar_pool, "WAIT_SECONDS", -1.0)
    fresh.pool.poll()
    for ticket in (tickets[0], tickets[3]):
        with pytest.raises(Busy, match="try again"):
            ticket.process()
    assert fresh.pool.counts["busy"] == 4 and not fresh.pool._jobs


def test_jobs_that_are_forgotten_are_not_compiled(fresh: Grammars) -> None:
    compiler = Compiler(SimpleNamespace(grammars=fresh))  # type: ignore[arg-type]
    for job in (1, 2, 3):
        compiler.submit(job, SamplingParams(structured_outputs={"regex": f"a{{{job}}}"}))
    compiler.submit(4, SamplingParams(structured_outputs={"regex": "(("}))
    compiler.forget(2)
    found: dict[int, Any] = {}
    while compiler.busy:
        found |= {one.job: one for one in compiler.finished()}
    assert sorted(found) == [1, 3, 4] and fresh.pool.counts["compiled"] == 2
    assert may(found[1].grammar.masks[0]) == [A] and "unclosed group" in str(found[4].error)


def test_what_is_kept_is_bounded_in_bytes(fresh: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_pool, "PROMISE_SECONDS", 0.0)
    forms = [{"json": {"enum": [f"{i} {j * 7919 % 100003}" for j in range(4000)]}} for i in range(6)]
    start(fresh, forms[0])
    monkeypatch.setattr(grammar_pool, "KEPT_BYTES", int(2.5 * fresh.pool.bytes))
    in_use = start(fresh, SMALL)
    for form in forms[1:]:
        start(fresh, form)
        idle = [process.bytes for process in fresh.pool._ready.values() if process.live == 0]
        assert sum(idle) <= grammar_pool.KEPT_BYTES + max(idle)  # the newest is not idle yet when room is made
    assert len(fresh.pool._ready) <= 5 and not in_use.consume(A)  # what is used is not ended
    compiled = fresh.pool.counts["compiled"]
    start(fresh, forms[0])
    assert fresh.pool.counts["compiled"] == compiled + 1


def test_many_processes_in_use_leave_no_room_for_more(fresh: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_pool, "LIVE", 2)
    monkeypatch.setattr(grammar_pool, "PROMISE_SECONDS", 0.0)
    held = [start(fresh, {"regex": f"a{{{i}}}"}) for i in (1, 2)]
    with pytest.raises(Busy, match="too many grammars are in use"):
        start(fresh, {"regex": "a{3}"})
    del held[0]
    assert may(start(fresh, {"regex": "a{3}"}).masks[0]) == [A]
