"""What strangers may send: floods, bombs, forged names, texts that break parsers. The server says no and lives."""

from __future__ import annotations

import gzip
import json
import os
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from raw_http import code, drained, exchange, raw_post
from served import Served, served
from slowness import times_slower

from augury.serve.errors import ApiError
from augury.serve.visitors import check_visitor, is_loopback

PATIENCE = 3.0
JSON = {"content-type": "application/json"}
LONG = {"prompt": "storm", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 1}


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    with served(toy_model, "--served-model-name", "toy", "--read-timeout", str(PATIENCE), "--enable-access-log") as on:
        yield on


@pytest.fixture(autouse=True)
def lives_on(server: Served) -> Iterator[None]:
    """Whatever a test did: the same engine, nothing left in it, nothing unexpected in the log."""
    engine, read = server.engine_pid(), len(server.log)
    yield
    server.until_idle()
    assert server.engine_pid() == engine and server.metrics()["vllm:kv_cache_usage_perc"] == 0
    assert server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
    assert "Traceback" not in server.log[read:]


# --- connections -----------------------------------------------------------------------------------------------------


def test_two_hundred_streams_dropped_midway(server: Served) -> None:
    """Slots and blocks are free within a step of the last one leaving."""
    dice, sent = random.Random(3), raw_post(LONG)

    def come_and_go(_: int) -> None:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
            raw.sendall(sent)
            for _ in range(dice.randint(1, 4)):
                assert raw.recv(2000)

    with ThreadPoolExecutor(40) as pool:
        list(pool.map(come_and_go, range(200)))
    begun = server.metrics()["vllm:generation_tokens_total"]
    server.until_idle(5)
    assert server.metrics()["vllm:kv_cache_usage_perc"] == 0
    assert server.metrics()["vllm:generation_tokens_total"] - begun < 40 * 8  # no more than a few steps' worth
    assert server.http.get("/load").json() == {"server_load": 0}


def test_slow_loris_by_the_hundred(server: Served) -> None:
    """Bytes that drip in do not buy time: heads and bodies have one deadline each."""
    half, whole = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", raw_post(LONG)
    with ExitStack() as opened:
        drips: list[socket.socket] = []
        for i in range(300):
            raw = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=120))
            raw.sendall(half if i % 2 else whole[:-40])
            drips.append(raw)
        begun = time.monotonic()
        while time.monotonic() - begun < PATIENCE + 3:
            for raw in drips:
                try:
                    raw.send(b"x")
                except OSError:  # closed on us
                    continue
            assert server.http.get("/health").status_code == 200
            time.sleep(0.3)
        ends = [drained(raw) for raw in drips]
    assert all(answer == b"" for answer in ends[1::2])
    assert all(answer == b"" or code(answer) == 408 for answer in ends[::2]) and any(ends[::2])


def test_a_thousand_idle_connections(server: Served) -> None:
    with ExitStack() as opened:
        idle = [opened.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(1000)]
        begun = time.monotonic()
        got = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 5}, timeout=120)
        assert got.status_code == 200 and time.monotonic() - begun < PATIENCE * times_slower()
        for raw in idle:
            raw.settimeout(PATIENCE + 120)
            assert raw.recv(1) == b""  # they are let go


def test_many_requests_down_one_connection(server: Served) -> None:
    """A hundred at once, unread: they are answered one after another."""
    one = {"prompt": "x", "max_tokens": 1}
    sent = raw_post(one) * 99 + raw_post(one, "Connection: close")
    assert exchange(server, sent).count(b"HTTP/1.1 200") == 100


# --- bodies ----------------------------------------------------------------------------------------------------------

DEEP_FIELDS = (
    "structured_outputs",
    "guided_json",
    "speculative",
    "kv_transfer_params",
    "response_format",
    "logit_bias",
    "unknown_field",
    "stop",
    "prompt",
)


@pytest.mark.parametrize("field", DEEP_FIELDS)
def test_deep_values_are_refused_or_ignored(server: Served, field: str) -> None:
    for depth in (200, 480, 900, 960, 985, 995, 1100, 5000, 60_000):
        for left, right in (('{"json": ' + '{"items": ' * depth, "}" * depth + "}"), ("[" * depth, "]" * depth)):
            text = f'{{"prompt": "x", "max_tokens": 1, "{field}": {left}{"{}" if left[0] == "{" else ""}{right}}}'
            got = server.http.post("/v1/completions", content=text, headers=JSON)
            assert got.status_code in (200, 400), (depth, got.text)


def test_deep_tools_and_template_options(server: Served) -> None:
    for depth in (200, 480, 900, 985, 1100):
        deep = '{"a": ' * depth + "1" + "}" * depth
        for field in (f'"tools": [{deep}]', f'"chat_template_kwargs": {deep}'):
            text = f'{{"messages": [{{"role": "user", "content": "x"}}], "max_tokens": 1, {field}}}'
            got = server.http.post("/v1/chat/completions", content=text, headers=JSON)
            assert got.status_code in (200, 400), (depth, got.text)


@pytest.mark.parametrize(
    "wanted",
    [
        {"regex": "(" * 20_000 + "a" + ")" * 20_000},
        {"regex": "(a{1,9999}){1,9999}"},
        {"regex": "(?=a)b\\1"},
        {"grammar": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000},
        {"grammar": "root ::= root"},
        {"json": {"$ref": "#"}},
        {"json": {"$ref": "http://example.com/x"}},
        {"json": {"$ref": "file:///etc/passwd"}},
        {"json": {"type": "string", "maxLength": 10**30}},
        {"json": {"enum": ["\x00", "\ud800"]}},
        {"choice": ["\x00"]},
        {"choice": ["\ud800"]},
    ],
)
def test_grammars_that_break_parsers(server: Served, wanted: dict[str, Any]) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 4, "structured_outputs": wanted})
    got = server.http.post("/v1/completions", content=body, headers=JSON)
    assert got.status_code in (200, 400), got.text


@pytest.mark.parametrize("bad", ["\x00", "\ud800", "\x00\ud800<eos>\x1b[31m", "\u202e", "\r\n\r\nHTTP/1.1 200 OK"])
def test_odd_texts_in_every_field(server: Served, bad: str) -> None:
    fields = ("prompt", "model", "stop", "bad_words", "cache_salt", "guided_regex", "guided_choice", "user", bad)
    for field in fields:
        value = [bad] if field in ("bad_words", "guided_choice") else bad
        body = {"prompt": "x", "max_tokens": 2, field: value}
        got = server.http.post("/v1/completions", content=json.dumps(body), headers=JSON)
        assert got.status_code in (200, 400, 404), (field, got.text)
    chat = {"messages": [{"role": "user", "content": bad, "name": bad}], "max_tokens": 2}
    assert server.http.post("/v1/chat/completions", content=json.dumps(chat), headers=JSON).status_code in (200, 400)
    for body in ({"prompt": bad}, {"messages": [{"role": "user", "content": bad}]}):
        assert server.http.post("/tokenize", content=json.dumps(body), headers=JSON).status_code in (200, 400)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 10**9),
        ("n", 129),
        ("logprobs", 10**6),
        ("prompt_logprobs", 10**6),
        ("max_tokens", -(10**30)),
        ("min_tokens", 10**30),
        ("top_k", 10**30),
        ("seed", 10**30),
        ("temperature", 1e300),
        ("stop", ["x"] * 65),
        ("stop", "x" * 1001),
        ("stop_token_ids", [1] * 257),
        ("bad_words", ["x"] * 129),
        ("prompt", ["x"] * 1025),
        ("logit_bias", {str(10**30): 1}),
        ("allowed_token_ids", [10**30]),
        ("prompt", [[10**30]]),
    ],
)
def test_huge_values_are_refused_by_name(server: Served, field: str, value: Any) -> None:
    got = server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2, field: value})
    assert got.status_code == 400 and (got.json()["error"]["param"] or "").startswith(field), got.text


def test_more_tokens_than_there_is_room_for_means_all_there_is(server: Served) -> None:
    body = {"prompt": "x", "max_tokens": 2**31 - 1, "ignore_eos": True}  # what is larger is refused: test_serve_numbers
    assert server.http.post("/v1/completions", json=body).json()["usage"]["total_tokens"] == 512


def test_a_zipped_body_is_not_unpacked(server: Served) -> None:
    bomb = gzip.compress(b'{"prompt": "' + b"x" * 20_000_000 + b'"}')
    for kind in ("gzip", "deflate", "br"):
        got = server.http.post("/v1/completions", content=bomb, headers={**JSON, "content-encoding": kind})
        assert got.status_code == 400, got.text


# --- heads -----------------------------------------------------------------------------------------------------------


def test_nothing_of_a_request_comes_back_as_a_header(server: Served) -> None:
    body = {"prompt": "x", "max_tokens": 1, "request_id": "a\r\nX-Evil: 1", "user": "b\r\nX-Evil: 1"}
    got = server.http.post("/v1/completions", json=body, headers={"X-Request-Id": "evil"})
    assert got.status_code == 200 and "evil" not in str(got.headers).lower()
    forged = exchange(server, raw_post(body, "X-Request-Id: a\rX-Evil: 1", "Connection: close"))
    assert b"x-evil" not in forged.partition(b"\r\n\r\n")[0].lower()
    lines = len(server.log.splitlines())
    server.http.get("/nowhere%0aERROR%20forged%0d%0aline")
    assert len(server.log.splitlines()) <= lines + 1 and "\nERROR forged" not in server.log


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py",
        "/page/..%2fapp.py",
        "/page/%2e%2e/app.py",
        "/page/%2e%2e%2fapp.py",
        "/page/....//app.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page/..%5capp.py",
        "/page/%00",
        "/page/index.html%00.js",
        "/page/vendor/../../app.py",
        "/page/" + "a" * 5000,
        "/page/%ff%fe",
        "/page/.",
        "/page/",
    ],
)
def test_the_page_gives_its_own_files_only(server: Served, path: str) -> None:
    answer = exchange(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert code(answer) == 404 and b"import " not in answer and b"root:" not in answer, answer[:200]


def test_garbage_instead_of_http(server: Served) -> None:
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00", b"\r\n" * 50, b"A" * 200_000):
        answer = exchange(server, junk)
        assert answer == b"" or code(answer) == 400
    both = raw_post({"prompt": "x"}, "Transfer-Encoding: chunked")  # a length, and chunks that are none
    answer = exchange(server, both + raw_post({"prompt": "smuggled"}))
    assert code(answer) in (400, 408) and answer.count(b"HTTP/1.1") == 1  # one refusal, and it hangs up


# --- pages from elsewhere --------------------------------------------------------------------------------------------


def test_no_other_site_may_read_or_use_it(server: Served) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}):
        for answer in (
            server.http.post("/v1/completions", json=body, headers=headers),
            server.http.get("/augury/live", headers=headers),
        ):
            assert answer.status_code == 403 and "access-control" not in str(answer.headers).lower(), headers
            assert "--allowed-host" in answer.json()["error"]["message"]
    asked = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    preflight = server.http.options("/v1/completions", headers=asked)
    assert preflight.status_code == 403 and "access-control-allow-origin" not in preflight.headers
    own = {"Origin": server.url, "Host": f"127.0.0.1:{server.port}"}
    assert server.http.post("/v1/completions", json=body, headers=own).status_code == 200
    local = {"Host": f"localhost:{server.port}"}
    assert server.http.post("/v1/completions", json=body, headers=local).status_code == 200
    plain = {"content-type": "text/plain"}  # what a page may send without asking first
    assert server.http.post("/v1/completions", content=json.dumps(body), headers=plain).status_code == 415


@pytest.mark.parametrize(
    ("host", "origin", "allowed", "passes"),
    [
        ("", None, [], True),
        ("localhost:8000", None, [], True),
        ("a.localhost", None, [], True),
        ("[::1]:8000", None, [], True),
        ("192.168.1.5", None, [], True),
        ("box", None, [], True),
        ("host.docker.internal:8000", None, [], True),
        ("evil.example", None, [], False),
        ("127.0.0.1.evil.example", None, [], False),
        ("localhost.evil.example", None, [], False),
        ("evil.example.", None, [], False),
        ("[::1", None, [], False),
        ("llm.example.org", None, ["llm.example.org"], True),
        ("llm.example.org", "https://llm.example.org", ["llm.example.org"], True),
        ("localhost:8000", "http://localhost:8000", [], True),
        ("localhost:8000", "http://localhost:3000", [], False),
        ("localhost:8000", "http://ui.example:3000", ["ui.example"], True),
        ("evil.example", None, ["*"], True),
        ("localhost", "null", [], False),
        ("localhost", "http://[", [], False),
    ],
)
def test_visitors(host: str, origin: str | None, allowed: list[str], passes: bool) -> None:
    headers = {b"host": host.encode()} | ({} if origin is None else {b"origin": origin.encode()})
    if passes:
        check_visitor(headers, True, allowed)
        return
    with pytest.raises(ApiError) as caught:
        check_visitor(headers, True, allowed)
    assert caught.value.status == 403


def test_loopback_is_known_when_seen() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.5", "example.org")))


# --- prompts that cannot fit -----------------------------------------------------------------------------------------


def test_prompts_that_cannot_fit_cost_nothing(server: Served) -> None:
    def memory() -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])  # kB

    def refused(path: str, *words: str, status: int = 400, **body: Any) -> None:
        got = server.http.post(path, json=body)
        said = got.json()["error"]["message"]
        assert got.status_code == status and all(word in said for word in words), got.text[:300]

    def spent() -> float:
        words = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")  # processor seconds

    server.http.post("/tokenize", json={"prompt": "warm"})
    before, begun = memory(), spent()
    for _ in range(2):  # the second time shows what is kept of the first
        refused("/v1/completions", "at least", "max_model_len is 512", prompt="the cat " * 1_000_000)
        chat = [{"role": "user", "content": "<eos>" * 1_000_000}]
        refused("/v1/chat/completions", "at least", "max_model_len is 512", messages=chat)
        refused("/tokenize", "takes at most 1048576", prompt="x" * 8_000_000)
    refused("/v1/completions", "has 1000000 tokens", prompt=[5] * 1_000_000, echo=True)
    refused("/v1/completions", "at most 1048576", prompt=[5] * 2_000_000, status=413)
    refused("/v1/completions", "has 512 tokens", prompt=["x", "y" * 512])
    refused("/detokenize", "at most 1048576", tokens=[5] * 1_100_000, status=413)
    assert spent() - begun < 20
    assert memory() - before < 400_000
