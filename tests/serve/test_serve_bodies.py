"""Bodies: keys come first, each has a deadline, all together have a budget, and no other route reads one."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from raw_http import answered, code, drained
from served import Served, served

from augury import LLM, SamplingParams
from augury.serve import reading
from augury.serve.bodies import SMALL, Bodies
from augury.serve.connection import UNREAD
from augury.serve.errors import ApiError
from augury.serve.limits import ALL_BODIES
from augury.serve.openai import MOST_MESSAGES, ChatRequest
from augury.serve.tokenizing import DetokenizeRequest, TokenizeRequest

KEY, MOST = "the-key", 1 << 20
PATIENCE = 2.0


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    flags = ("--api-key", KEY, "--max-request-bytes", str(MOST), "--read-timeout", str(PATIENCE))
    with served(toy_model, *flags, spec=None) as running:
        yield running


def head(path: str, length: int, key: str = "") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join([*lines, *([f"Authorization: Bearer {key}"] if key else []), "", ""]).encode()


def opened(server: Served, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=120))


def resident(server: Served) -> int:
    """Bytes of memory that the server has."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/nowhere", "/tokenize", "/detokenize"])
def test_who_has_no_key_is_refused_before_the_body(server: Served, path: str) -> None:
    with ExitStack() as stack:
        raw = opened(server, stack)
        raw.sendall(head(path, MOST) + b"{")  # and no more
        assert code(answered(raw)) == 401


@pytest.mark.parametrize("path", ["/nowhere", "/health", "/", "/metrics", "/augury/live", "/ping", "/page/main.js"])
def test_no_other_route_waits_for_a_body(server: Served, path: str) -> None:
    with ExitStack() as stack:
        raw = opened(server, stack)
        raw.sendall(head(path, MOST) + b"x")
        assert code(raw.recv(4096)) in (200, 404, 405)
        assert drained(raw).count(b"HTTP/1.1") == 0  # the body never came, and the connection ended with its deadline


def test_a_body_that_nobody_asked_for_is_not_taken_for_ever(server: Served) -> None:
    """A little is thrown away, so that the connection can be used again."""
    again = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    for size, answers in ((UNREAD - SMALL, 1), (2 * UNREAD, 0)):
        with ExitStack() as stack:
            raw = opened(server, stack)
            raw.sendall(head("/nowhere", size))
            assert code(answered(raw)) == 404
            with suppress(OSError):  # it may hang up while we write
                raw.sendall(b"x" * size + again)
            assert drained(raw).count(b"HTTP/1.1 200") == answers


def test_unfinished_bodies_have_a_budget(server: Served) -> None:
    """Forty of nearly a MiB each: four and a little more are kept, others are told to come again, small ones pass."""
    before = resident(server)
    with ExitStack() as stack:
        posts = [opened(server, stack) for _ in range(40)]
        for raw in posts:
            raw.settimeout(1)
            raw.sendall(head("/v1/completions", MOST, KEY))
        for raw in posts:
            try:
                raw.sendall(b" " * (MOST - 1))
            except OSError:  # refused while we wrote
                continue
        small = server.http.post(
            "/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers={"Authorization": f"Bearer {KEY}"}
        )
        assert small.status_code == 200
        assert resident(server) - before < (ALL_BODIES + 4) * MOST + 40 * (SMALL + 3 * 65536)
        for raw in posts:
            raw.settimeout(20)
        codes = [code(answer) for raw in posts if (answer := drained(raw))]
    assert set(codes) <= {408, 429} and codes.count(408) <= ALL_BODIES + 1, codes
    ask = {"prompt": "x" * (SMALL + 1000)}
    got = server.http.post("/tokenize", json=ask, headers={"Authorization": f"Bearer {KEY}"})
    assert got.status_code == 200  # all of it was given back


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, SMALL)), max_size=60), st.integers(1, 6))
def test_the_budget_is_kept_and_given_back(pieces: list[tuple[int, int]], total: int) -> None:
    """Six bodies, growing in any order."""

    async def play() -> None:
        bodies = Bodies(4 * SMALL, total * SMALL, 60)
        inboxes = [asyncio.Queue() for _ in range(6)]  # type: ignore[var-annotated]
        sizes, refused = [0] * 6, set()
        tasks = [asyncio.create_task(bodies.read(inbox.get)) for inbox in inboxes]
        for who, size in pieces:
            if who in refused:
                continue
            await inboxes[who].put({"type": "http.request", "body": b"x" * size, "more_body": True})
            for _ in range(6):
                await asyncio.sleep(0)
            sizes[who] += size
            if tasks[who].done():
                error = tasks[who].exception()
                assert isinstance(error, ApiError) and error.status in (413, 429)
                assert (error.status == 413) == (sizes[who] > 4 * SMALL)
                refused.add(who)
                sizes[who] = 0
            assert bodies.held == sum(max(0, size - SMALL) for size in sizes) <= total * SMALL
        for who, task in enumerate(tasks):
            if who not in refused:
                await inboxes[who].put({"type": "http.request", "body": b"", "more_body": False})
                body = await task
                assert len((await body.receive())["body"]) == sizes[who]
                body.release()
                body.release()
        assert bodies.held == 0

    asyncio.run(play())


def test_a_parsed_body_leaves_the_budget_while_its_answer_runs(server: Served) -> None:
    """More streams with large bodies than the budget has room for at a time."""
    body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True, "user": "u" * (MOST - 1000)}
    sent = json.dumps(body).encode()
    with ExitStack() as stack:
        streams = [opened(server, stack) for _ in range(ALL_BODIES + 3)]
        for raw in streams:
            raw.sendall(head("/v1/completions", len(sent), KEY) + sent)
            assert code(raw.recv(64)) == 200


# --- kernels ---------------------------------------------------------------------------------------------------------


def compiled() -> dict[str, int]:
    """How many versions there are of every function of ours that numba compiles."""
    from numba.core.registry import CPUDispatcher

    ours = [vars(module) for name, module in list(sys.modules.items()) if name.startswith("augury")]
    found = [value for names in ours for value in names.values() if isinstance(value, CPUDispatcher)]
    return {f"{one.py_func.__module__}.{one.py_func.__name__}": len(one.signatures) for one in found}


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 3},
        {"method": "suffix"},
    ],
    ids=["plain", "ngram", "suffix"],
)
def test_nothing_is_compiled_once_an_engine_is_there(toy_model: Path, spec: dict[str, Any] | None) -> None:
    """What /health speaks of: the first request of any kind runs at once."""
    llm = LLM(str(toy_model), device="cpu", speculative_config=spec)
    before = compiled()
    for params in (
        {},
        {"temperature": 0},
        {"top_p": 0.9, "top_k": 5, "min_p": 0.1},
        {"repetition_penalty": 1.2},
        {"bad_words": ["a"]},
        {"presence_penalty": 0.5, "logit_bias": {3: 1.0}},
        {"min_tokens": 3},
        {"logprobs": 3, "prompt_logprobs": 2},
    ):
        llm.generate(["abcabcabcabc"], SamplingParams(max_tokens=9, ignore_eos=True, **params), use_tqdm=False)
    assert compiled() == before
    drafter: Any = llm.engine.drafter
    if hasattr(drafter, "cache"):
        assert len(drafter.cache.cached) == 8  # of the rehearsal nothing is left


@pytest.mark.parametrize("value", [b"0", b"[]", b"{}"])
def test_a_body_of_very_many_values_is_refused_before_it_is_parsed(
    value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsing = reading._Parsing({"type": "http"})
    parsing.model = DetokenizeRequest
    monkeypatch.setattr(reading, "MOST_MARKS", 1000)
    monkeypatch.setattr(reading.json, "loads", lambda _: pytest.fail("it was parsed"))
    parsing._body = b'{"tokens": [' + b",".join([value] * 1001) + b"]}"
    with pytest.raises(ApiError) as refused:
        parsing._parsed()
    assert refused.value.status == 413 and "at most 1000" in refused.value.message


def test_so_is_a_body_of_very_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them held the interpreter for a second."""
    parsing = reading._Parsing({"type": "http"})
    parsing.model = DetokenizeRequest
    monkeypatch.setattr(reading.json, "loads", lambda _: pytest.fail("it was parsed"))
    parsing._body = b"{" + b",".join(b'"%d":0' % i for i in range(reading.MOST_COLONS + 1)) + b"}"
    with pytest.raises(ApiError) as refused:
        parsing._parsed()
    assert refused.value.status == 413 and "262145 colons" in refused.value.message


def test_a_conversation_has_a_most_and_the_first_too_many_ends_it() -> None:
    """120,000 empty messages, four megabytes, held the interpreter for half a second."""
    message = {"role": "user", "content": ""}
    assert ChatRequest.model_validate({"messages": [message] * MOST_MESSAGES})
    for kind in (ChatRequest, TokenizeRequest):
        with pytest.raises(ValidationError, match="at most 16384 items"):
            kind.model_validate({"messages": [message] * MOST_MESSAGES + ["never looked at"]})


DEEP = '{"a":' * 970 + "1" + "}" * 970


@pytest.mark.parametrize(
    ("field", "value", "length"),
    [
        ("kv_transfer_params", DEEP, reading.LONG),  # it killed the engine: read in a thread, which has more room
        ("kv_transfer_params", DEEP, 1),
        ("structured_outputs", '{"json": ' + DEEP + "}", reading.LONG),
        ("structured_outputs", '{"json": ' + json.dumps(DEEP) + "}", 1),
        (
            "response_format",
            '{"type": "json_schema", "json_schema": {"name": "x", "schema": ' + DEEP + "}}",
            reading.LONG,
        ),
        ("metadata", "[" * 100_000 + "]" * 100_000, 1),
    ],
)
def test_what_is_nested_too_deeply_is_refused_and_nobody_dies(
    server: Served, field: str, value: str, length: int
) -> None:
    engine = server.engine_pid()
    body = json.dumps({"prompt": "x", "max_tokens": 1, "user": "u" * length, field: "@"}).replace('"@"', value)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    answer = server.http.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    fine = server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers=headers)
    assert fine.status_code == 200 and server.engine_pid() == engine


@given(st.recursive(st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_levels_are_counted(value: Any) -> None:
    def depth(one: Any) -> int:
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        return isinstance(one, (dict, list)) + max(map(depth, inner), default=0)

    for levels in (1, 2, 3):
        if isinstance(value, (dict, list)):
            assert reading.nested(value, levels) == (depth(value) > levels)


def test_nothing_is_collected_while_a_body_is_parsed() -> None:
    with pytest.raises(ValueError, match="x"), reading.uncollected():
        assert not gc.isenabled()
        with reading.uncollected():
            pass
        assert not gc.isenabled()
        raise ValueError("x")
    assert gc.isenabled()


def test_that_refusal_reaches_the_client(toy_model: Path) -> None:
    with served(toy_model, spec=None) as running:
        answer = running.http.post("/detokenize", json={"tokens": [65] * (reading.MOST_MARKS + 2)})
        assert answer.status_code == 413 and "commas" in answer.json()["error"]["message"]
