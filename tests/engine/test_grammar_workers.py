"""Grammars' processes: what a source may do to its own, and that nobody else notices."""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import re
import signal
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grammar_cases import (
    deep_schema,
    gbnf_chain,
    lark_chain,
    late_explosion,
    long_gbnf,
    reference_chain,
    size_of,
    slow_masks,
    some_source,
)
from structured import EOS

from augury import SamplingParams
from augury.config.errors import ConfigError
from augury.engine import grammar_pool
from augury.engine.grammar import Ahead, Grammar, Grammars, advance
from augury.engine.grammar_jobs import Busy, Ticket
from augury.engine.grammar_limits import Limits
from augury.model.tokenizer import Tokenizer
from augury.serve.compiling import Compiler

SMALL = {"regex": "[ab]{3}"}
A, B = 64, 65
TIGHT = Limits(compile_seconds=0.4, burst_seconds=0.2, stack_bytes=1 << 20)


@pytest.fixture(scope="module")
def tokenizer(toy_model: Path) -> Tokenizer:
    return Tokenizer(toy_model)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, 260)


@pytest.fixture(scope="module")
def tight(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, 260, TIGHT)


@pytest.fixture
def fresh(tokenizer: Tokenizer) -> Grammars:
    """For tests that kill: with no fork server yet, and time for a machine ten times slower."""
    return Grammars(tokenizer, 260, Limits(compile_seconds=100.0))


def start(grammars: Grammars, form: dict[str, Any], **more: Any) -> Grammar:
    grammar = grammars.start(SamplingParams(structured_outputs=form, **more))
    assert grammar is not None
    return grammar


def may(mask: np.ndarray) -> list[int]:
    return np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[0].tolist()


def accepts(grammars: Grammars, form: dict[str, Any], text: str) -> bool:
    """Whether a whole text has the form."""
    grammar = start(grammars, form)
    for token in grammars_tokens(text):
        if token not in may(grammar.masks[0]):
            return False
        if grammar.consume(token):
            return True
        grammar.look_ahead([], [])
    return EOS in may(grammar.masks[0])


def grammars_tokens(text: str) -> list[int]:
    return TOKENS[0].encode(text, special=False)


TOKENS: list[Tokenizer] = []


@pytest.fixture(scope="module", autouse=True)
def encoder(tokenizer: Tokenizer) -> None:
    TOKENS[:] = [tokenizer]


def server_pid(grammars: Grammars) -> int:
    return grammars.pool._servers[0].process.pid


def children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def bring(grammars: Grammars, until: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120
    while not until():
        assert time.monotonic() < limit
        grammars.pool.poll(0.01)


def ask(grammars: Grammars, form: dict[str, Any], client: str = "") -> Ticket:
    return grammars.ask(SamplingParams(structured_outputs=form), client)


# --- what a source may do to its own process ------------------------------------------------------------------------

HOSTILE: dict[str, dict[str, Any]] = {
    "a chain of references": {"json": reference_chain(1000)},
    "thousands of Lark rules": {"grammar": lark_chain(4000)},
    "thousands of GBNF rules": {"grammar": gbnf_chain(1500)},
    "deep objects": {"json": deep_schema(300)},
    "a large enum": {"json": {"enum": [f"v{i * 7919 % 100003}" for i in range(30_000)]}},
    "a panic's candidate": {"json": {"type": "string", "maxLength": 10**30}},
    "a lone surrogate": {"choice": ["\ud800"]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_source_is_compiled_or_refused_and_the_next_is_served(grammars: Grammars, name: str) -> None:
    start(grammars, SMALL)
    before = server_pid(grammars)
    try:
        assert may(start(grammars, HOSTILE[name]).masks[0])
    except ConfigError as error:
        (kind,) = HOSTILE[name]
        assert str(error).startswith(f"structured_outputs.{kind} cannot be used: ") and "\n" not in str(error)
        assert len(str(error)) < 600
    assert accepts(grammars, SMALL, "aba") and server_pid(grammars) == before


@pytest.mark.parametrize(
    ("form", "words", "outcome"),
    [
        ({"json": reference_chain(1000)}, r"structured_outputs\.json .* more than 1 MiB of stack", "stack"),
        ({"grammar": lark_chain(4000)}, r"structured_outputs\.grammar .* more than 1 MiB of stack", "stack"),
        ({"grammar": gbnf_chain(4000)}, r"grammar .* takes more than 0.4 seconds", "time"),
    ],
    ids=["references", "Lark", "GBNF"],
)
def test_the_limit_that_was_broken_is_named_and_counted(
    tight: Grammars, form: dict[str, Any], words: str, outcome: str
) -> None:
    before = tight.pool.counts[outcome]
    for _ in range(2):  # the second time from memory
        with pytest.raises(ConfigError, match=words):
            start(tight, form)
    assert tight.pool.counts[outcome] == before + 1
    assert accepts(tight, SMALL, "aba")


def test_memory_has_a_limit(tokenizer: Tokenizer) -> None:
    narrow = Grammars(tokenizer, 260, Limits(memory_bytes=12 << 20))
    with pytest.raises(ConfigError, match=r"structured_outputs\.json .* more than 12 MiB of memory"):
        start(narrow, {"json": {"enum": [f"v{i * 7919 % 100003}" for i in range(40_000)]}})
    assert narrow.pool.counts["memory"] == 1 and accepts(narrow, SMALL, "aba")


def test_a_refusal_that_is_remembered_keeps_nothing_of_those_who_asked(grammars: Grammars) -> None:
    """An error that is raised again and again would grow by its frames, with all that each request brought."""
    compiler = Compiler(SimpleNamespace(grammars=grammars))  # type: ignore[arg-type]
    asked: list[weakref.ref[SamplingParams]] = []
    for job in range(12):
        params = SamplingParams(structured_outputs={"regex": "[ab"})
        asked.append(weakref.ref(params))
        compiler.submit(job, params)
        del params
        found: list[Any] = []
        bring(grammars, lambda found=found: bool(found.extend(compiler.finished()) or found))
        assert isinstance(found[0].error, ConfigError) and "cannot be used" in str(found[0].error)
    del found
    gc.collect()
    assert [one() for one in asked] == [None] * 12


def test_a_source_over_its_size_is_not_looked_at(grammars: Grammars) -> None:
    for kind, value in (("grammar", "x" * 2_000_000), ("json", {"enum": ["x" * 2_000_000]}), ("choice", ["x"] * 10**6)):
        with pytest.raises(ConfigError, match=rf"structured_outputs\.{kind} has \d+ characters; the limit is 1048576"):
            SamplingParams(structured_outputs={kind: value})


def test_a_parser_that_never_comes_back_ends_its_own_requests_and_no_others(grammars: Grammars) -> None:
    """The first mask takes a millisecond; after 500 a's and a b the library computes for hours."""
    guilty, twin = (start(grammars, {"grammar": late_explosion(100)}) for _ in range(2))
    other = start(grammars, {"regex": "[ab]{900}"})
    for token in itertools.chain([A] * 500, [B] * 5):
        advance([Ahead(guilty, [token], [], []), Ahead(other, [token], [], [])])
        assert not other.consume(token)
        other.look_ahead([], [])
        if guilty.consume(token) or guilty.error:
            break
        guilty.look_ahead([], [])
    assert "its masks take more than 5 ms each" in str(guilty.error)
    assert other.error is None and A in may(other.masks[0])
    assert twin.consume(A) and "its masks take" in str(twin.error)  # it had the same grammar
    assert not start(grammars, {"grammar": late_explosion(100)}).consume(A)  # which can be asked for again


def test_many_grammars_of_one_step_share_what_one_may_take() -> None:
    limits = Limits()
    for processes, cores in itertools.product(range(1, 300), (1, 2, 16)):
        share = limits.share(processes, cores)
        assert limits.burst_seconds / 10 <= share <= limits.burst_seconds
        assert share * processes / max(cores, 1) <= max(
            limits.burst_seconds, limits.burst_seconds / 10 * processes / cores
        )
    assert limits.share(1, 1) == limits.share(16, 16) == limits.burst_seconds > limits.share(17, 16)


def test_masks_that_take_long_every_time_use_up_their_time(tight: Grammars) -> None:
    grammar, steps = start(tight, {"grammar": slow_masks(60)}), 0
    while grammar.error is None and steps < 2000:
        steps += 1
        if grammar.consume(A):
            break
        grammar.look_ahead([], [])
    assert grammar.error is not None and steps < 2000


def test_a_draft_that_takes_long_loses_nodes_and_not_the_request(tokenizer: Tokenizer) -> None:
    hurried = Grammars(tokenizer, 260, Limits(draft_seconds=0.0))
    grammar, calm = start(hurried, {"regex": "a{30}"}), start(Grammars(tokenizer, 260), {"regex": "a{30}"})
    assert grammar.look_ahead([A] * 20, list(range(-1, 19))) == []
    assert calm.look_ahead([A] * 20, list(range(-1, 19))) == list(range(20))
    assert may(grammar.masks[0]) == may(calm.masks[0]) == [A]


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
    assert server.wait(20) == 0
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


# --- what expressions mean, and that random ones harm nobody --------------------------------------------------------


@pytest.mark.parametrize("kind", ["regex", "pattern"])
@pytest.mark.parametrize(
    ("expression", "inside", "outside"),
    [
        (r"\d", "059", "\u0663\u096a\uff15a"),
        (r"[\d]", "059", "\u0663\uff15"),
        (r"\D", "a\u0663\uff15", "059"),
        (r"\w", "aZ_9", "\u00e9\u0663\u4e2d-"),
        (r"\W", "\u00e9\u0663-", "aZ_9"),
        (r"\s", " \u00a0\u2003", "a_"),
        (r"\S", "a\u00e9", " \u00a0"),
    ],
)
def test_classes_are_those_of_json_schema(
    grammars: Grammars, kind: str, expression: str, inside: str, outside: str
) -> None:
    for sign in inside + outside:
        if kind == "regex":
            got = accepts(grammars, {"regex": expression}, sign)
        else:
            schema = {"type": "string", "pattern": f"^{expression}$"}
            got = accepts(grammars, {"json": schema}, json.dumps(sign, ensure_ascii=False))
        assert got == (sign in inside), (expression, sign)
    assert re.fullmatch(r"\d", "\u0663")  # Python's is wider


@pytest.mark.parametrize("part", range(4))
def test_random_sources_harm_nobody(tokenizer: Tokenizer, part: int) -> None:
    """Every one is refused in words or matches random texts; no process dies of anything but its time."""
    grammars, dice = Grammars(tokenizer, 260), random.Random(part)
    used = 0
    for _ in range(40):
        try:
            grammar = start(grammars, some_source(dice), ignore_eos=dice.random() < 0.2)
        except ConfigError as error:
            assert "structured_outputs" in str(error)
            continue
        used += walk(grammar, dice)
    counts = grammars.pool.counts
    assert counts["crash"] == counts["stack"] == counts["memory"] == counts["retried"] == 0, counts
    assert used > 10 and accepts(grammars, SMALL, "aba")


def walk(grammar: Grammar, dice: random.Random) -> bool:
    """Follow a grammar where dice lead, with drafts of all kinds."""
    for _ in range(25):
        allowed = may(grammar.masks[0])
        if not allowed or grammar.error is not None:
            break
        count = dice.randint(0, 6)
        tokens = [dice.choice([*allowed, A, B, EOS, 999]) for _ in range(count)]
        parents = [dice.randint(-1, i - 1) for i in range(count)]
        kept = grammar.look_ahead(tokens, parents)
        assert set(kept) <= set(range(count)) and len(grammar.masks) == 1 + len(kept)
        if grammar.error is not None or grammar.consume(dice.choice(allowed)):
            break
        grammar.look_ahead([], [])
    return True


def test_the_chain_is_the_one_that_was_sent() -> None:
    assert 100_000 < size_of(reference_chain(1000)) < 200_000 and len(long_gbnf(478_000)) == 478_000
