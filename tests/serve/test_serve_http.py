"""HTTP that two servers may read differently is refused, once, and the connection is closed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h11
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_http import answered, code, drained, exchange, raw_post
from served import Served, served

from augury.serve.errors import LONGEST, LONGEST_NAME, ApiError, cut
from augury.serve.strict_heads import CHUNK, FEW, MOST_BYTES, MOST_LINES, StrictHeads

KEY = "the-key"
ONE = {"prompt": "x", "max_tokens": 1}


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    with served(toy_model, "--api-key", KEY, spec=None) as running:
        yield running


def get(path: str, *lines: str, end: str = "\r\n") -> bytes:
    return end.join([f"GET {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


POST = b"POST /health HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"5\r\nabcde\r\n0\r\n\r\n"
ODD = {
    "two lengths": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "and the other way": POST + b"transfer-encoding:chunked\r\nCONTENT-LENGTH: 5\r\n\r\n" + CHUNKED,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "bare LF": get("/health", end="\n"),
    "one bare LF": get("/health", "A: b\nC: d"),
    "bare CR": get("/health", "A: b\rC: d"),
    "5,000 headers": get("/health", *(f"a{i}: b" for i in range(5000))),
    "129 lines": get("/health", *(f"a{i}: b" for i in range(127))),
    "chunks of a byte": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n",
    "a long head": get("/health", "A: " + "b" * MOST_BYTES),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_oddities_get_one_refusal_and_a_closed_connection(server: Served, odd: bytes) -> None:
    answer = exchange(server, odd + get("/health"))  # ends when the server hangs up
    assert answer.count(b"HTTP/1.1") == 1 and code(answer) == 400, answer[:300]


def chunked(*sizes: int) -> list[int]:
    """Bytes of the events that h11 makes of a request with these chunks."""
    reader = h11.Connection(h11.SERVER)
    reader._receive_buffer = StrictHeads()
    reader.receive_data(POST + b"Transfer-Encoding: chunked\r\n\r\n")
    reader.receive_data(b"".join(b"%x\r\n%b\r\n" % (size, b"x" * size) for size in sizes) + b"0\r\n\r\n")
    found: list[int] = []
    while not isinstance(event := reader.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Data):
            found.append(len(event.data))
    return found


def test_chunks_may_be_small_or_many_but_not_both() -> None:
    """A megabyte in chunks of a byte held the event loop for seconds, before a key was looked at."""
    for sizes in ([1] * (FEW - 1), [CHUNK] * (8 * FEW), [1, 2 * CHUNK] * (4 * FEW)):
        assert chunked(*sizes) == list(sizes)
    for sizes in ([1] * (FEW + 20), [CHUNK // 2] * (8 * FEW)):
        with pytest.raises(h11.RemoteProtocolError, match="chunks that are too small"):
            chunked(*sizes)


def test_each_body_of_a_connection_has_its_own_chunks(server: Served) -> None:
    body = json.dumps(ONE).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n".encode()
    head += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    small = b"".join(b"1\r\n%c\r\n" % byte for byte in body.ljust(FEW - 24)) + b"0\r\n\r\n"
    answer = exchange(server, (head + b"\r\n" + small) * 2 + head + b"Connection: close\r\n\r\n" + small)
    assert answer.count(b"HTTP/1.1 200") == 3, answer[:500]


def test_a_body_that_goes_wrong_after_its_answer_only_ends_the_connection(server: Served) -> None:
    refused = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
        line.sendall(refused)
        assert code(answered(line)) == 401
        line.sendall(b"no chunk\r\n")
        assert not drained(line)
    assert "Traceback" not in server.log


def test_an_ordinary_head_passes(server: Served) -> None:
    lines = [f"a{i}: b" for i in range(MOST_LINES - 6)]
    assert code(exchange(server, get("/health", *lines, "Connection: close"))) == 200
    heads = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", "Connection: close"]
    heads += [f"Authorization: Bearer {KEY}", "Transfer-Encoding: chunked", "", ""]
    body = json.dumps(ONE).encode()
    answer = exchange(
        server, "\r\n".join(heads).encode() + b"%x\r\n%s\r\n0\r\nTrailer: yes\r\n\r\n" % (len(body), body)
    )
    assert code(answer) == 200 and b'"choices"' in answer


@settings(max_examples=200, deadline=None)
@given(
    names=st.lists(st.from_regex(r"[a-z][a-z-]{0,8}", fullmatch=True), max_size=12, unique=True),
    body=st.binary(max_size=20),
    cuts=st.lists(st.integers(1, 40), max_size=8),
)
def test_strict_heads_are_h11s_where_heads_are_sound(names: list[str], body: bytes, cuts: list[int]) -> None:
    """However the bytes are cut, and with two requests on one connection."""
    lines = [f"{name}x: 1" for name in names]
    head = "\r\n".join(["POST / HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *lines, "", ""]).encode()
    sent = (head + body) * 2

    def events(strict: bool) -> list[Any]:
        conn, found, start = h11.Connection(h11.SERVER), [], 0
        if strict:
            conn._receive_buffer = StrictHeads()
        for size in [*cuts, len(sent)]:
            conn.receive_data(sent[start : start + size]) if sent[start : start + size] else None
            start += size
            while (event := conn.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                found.append(event)
                if isinstance(event, h11.EndOfMessage):
                    conn.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                    conn.send(h11.EndOfMessage())
                    conn.start_next_cycle()
        return found

    ours = events(True)
    assert list(map(repr, ours)) == list(map(repr, events(False)))
    assert sum(isinstance(event, h11.Request) for event in ours) == 2


def test_no_answer_names_the_host_that_was_asked(server: Served) -> None:
    for path in ("/health/", "/v1/models/", "/page", "/metrics/", "/v1/completions/"):
        got = server.http.get(path, headers={"Host": "evil.example", "Authorization": f"Bearer {KEY}"})
        assert got.status_code in (403, 404) and "location" not in got.headers and "evil" not in str(got.headers)


def test_a_rebinding_page_reads_no_figures_where_keys_are_set(server: Served) -> None:
    for path in ("/metrics", "/augury/live", "/load"):
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            assert server.http.get(path, headers=headers).status_code == 403, (path, headers)
            known = {**headers, "Authorization": f"Bearer {KEY}"}
            assert server.http.get(path, headers=known).status_code == 200, (path, headers)
        assert server.http.get(path).status_code == 200
    assert server.http.get("/health", headers={"Host": "probe.example"}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {**ONE, "max_tokenz" + "z" * 10**6: 1, "max_token": 1},
        {**ONE, "stop": [""] + ["x" * 900] * 60},
        {**ONE, "model": "m" * 10**6},
        {**ONE, "response_format": {"type": "t" * 10**6}},
        {**ONE, "logit_bias": {"b" * 10**6: 1}},
        {**ONE, "speculative": {"s" * 10**6: 1}},
        {**ONE, "structured_outputs": {"s" * 10**6: 1}},
        {**ONE, "allowed_token_ids": [-1] * 200},
        {**ONE, "u" * 10**6: 1, **{f"v{i}": 1 for i in range(64)}},
    ],
)
def test_errors_do_not_echo_what_was_sent(server: Served, body: dict[str, Any]) -> None:
    got = server.http.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {KEY}"})
    assert got.status_code in (400, 404) and len(got.content) < 1500, (got.status_code, len(got.content))
    assert got.json()["error"]["message"]


@given(text=st.text(max_size=3000), most=st.sampled_from([LONGEST, LONGEST_NAME]))
def test_a_cut_text_keeps_both_ends(text: str, most: int) -> None:
    short = cut(text, most)
    assert len(short) <= most and (short == text or (text.startswith(short[:20]) and text.endswith(short[-20:])))
    assert len(ApiError(400, text, text).message) <= LONGEST


def test_a_refusal_does_not_break_what_follows_on_sound_connections(server: Served) -> None:
    sound = raw_post(ONE, f"Authorization: Bearer {KEY}", "Connection: close")
    answer = exchange(server, raw_post(ONE, "Authorization: Bearer wrong") + sound)
    assert answer.count(b"HTTP/1.1 401") == 1 and answer.count(b"HTTP/1.1 200") == 1
    assert httpx.get(f"{server.url}/health").status_code == 200
