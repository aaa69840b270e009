"""The server under clients that ask for the wrong thing, too much, too slowly, or leave; others must not notice."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from served import Served

from augury import LLM

CHAT: Any = [{"role": "user", "content": "say abc abc abc"}]


# --- refusals --------------------------------------------------------------------------------------------------------

SPEC = "speculative"
TOOLS = [{"type": "function", "function": {"name": "f"}}]
NO_SCHEMA = [{"type": "function", "function": {"name": "f", "parameters": "any"}}]
TWICE = [*TOOLS, {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
LOOSE = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": "yes"}}]
OTHER = {"type": "function", "function": {"name": "g"}}
REFUSED: list[tuple[str, dict[str, Any], int, str | None]] = [
    ("completions", {"prompt": "x", "model": "other"}, 404, "model"),
    ("completions", {"prompt": "x", "model": "../../etc/passwd"}, 404, "model"),
    ("completions", {"prompt": "x", "temperature": -1}, 400, "temperature"),
    ("completions", {"prompt": "x", "temperature": "hot"}, 400, "temperature"),
    ("completions", {"prompt": "x", "top_p": 2}, 400, "top_p"),
    ("completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
    ("completions", {"prompt": "x", "n": 1000}, 400, "n"),
    ("completions", {"prompt": "x", "n": 2, "best_of": 3}, 400, "best_of"),
    ("completions", {"prompt": "x", "suffix": "y"}, 400, "suffix"),
    ("completions", {"prompt": "x", "logprobs": 21}, 400, "logprobs"),
    ("completions", {"prompt": "x", "temprature": 1}, 400, "temprature"),
    ("completions", {"prompt": "x", "allowed_token_ids": [9999]}, 400, "allowed_token_ids"),
    ("completions", {"prompt": ""}, 400, "prompt"),
    ("completions", {"prompt": []}, 400, "prompt"),
    ("completions", {"prompt": [1, 100000]}, 400, "prompt"),
    ("completions", {"prompt": [-1], "echo": True}, 400, "prompt"),
    ("completions", {"prompt": "x" * 600}, 400, "prompt"),
    ("completions", {}, 400, "prompt"),
    ("completions", {"prompt": "x", SPEC: {"method": "eagle3"}}, 400, "speculative.method"),
    ("completions", {"prompt": "x", SPEC: {"num_speculative_tokens": 5}}, 400, "speculative.num_speculative_tokens"),
    ("completions", {"prompt": "x", SPEC: {"enabled": "no"}}, 400, "speculative.enabled"),
    ("completions", {"prompt": "x", SPEC: {"on": 1}}, 400, "speculative.on"),
    ("chat/completions", {"messages": []}, 400, "messages"),
    ("chat/completions", {"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages"),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"),
    ("chat/completions", {"messages": CHAT, "tool_choice": "required"}, 400, "tool_choice"),
    ("chat/completions", {"messages": CHAT, "tools": TOOLS}, 400, "tool_choice"),
    ("chat/completions", {"messages": CHAT, "tools": TOOLS, "tool_choice": "always"}, 400, "tool_choice"),
    ("chat/completions", {"messages": CHAT, "tools": TOOLS, "tool_choice": {"type": "function"}}, 400, "tool_choice"),
    ("chat/completions", {"messages": CHAT, "tools": TOOLS, "tool_choice": OTHER}, 400, "tool_choice"),
    ("chat/completions", {"messages": CHAT, "tools": [{}], "tool_choice": "required"}, 400, "tools"),
    ("chat/completions", {"messages": CHAT, "tools": NO_SCHEMA, "tool_choice": "required"}, 400, "tools"),
    ("chat/completions", {"messages": CHAT, "use_beam_search": True}, 400, "use_beam_search"),
    ("chat/completions", {"messages": CHAT, "best_of": 4}, 400, "best_of"),
    ("completions", {"prompt": "x", "use_beam_search": True}, 400, "use_beam_search"),
    ("chat/completions", {"messages": CHAT, "top_logprobs": 2}, 400, "top_logprobs"),
    ("chat/completions", {"messages": CHAT, "chat_template": "x"}, 400, "chat_template"),
    ("chat/completions", {"messages": CHAT, "chat_template_kwargs": {"tokenize": True}}, 400, "chat_template_kwargs"),
    ("chat/completions", {"messages": CHAT, "response_format": {"type": "xml"}}, 400, "response_format"),
    ("chat/completions", {"messages": CHAT, "max_tokens": 0}, 400, "max_tokens"),
    ("completions", {"prompt": "x", "tool_choice": "required"}, 400, "tool_choice"),
    ("completions", {"prompt": "x", "tools": [{"type": "function"}]}, 400, "tools"),
    ("completions", {"prompt": "x", "guided_regex": "(("}, 400, "guided_regex"),
    ("completions", {"prompt": "x", "prompt_embeds": "AA"}, 400, "prompt_embeds"),
    ("completions", {"prompt": "x", "truncate_prompt_tokens": 3}, 400, "truncate_prompt_tokens"),
    ("completions", {"prompt": "x", "priority": 1}, 400, "priority"),
    ("completions", {"prompt": "x", "logprobs": -1}, 400, "logprobs"),
    ("chat/completions", {"messages": CHAT, "echo": True}, 400, "echo"),
    ("chat/completions", {"messages": CHAT, "modalities": ["text", "audio"]}, 400, "modalities"),
    ("chat/completions", {"messages": CHAT, "tools": TWICE, "tool_choice": "required"}, 400, "tools"),
    ("chat/completions", {"messages": CHAT, "tools": LOOSE, "tool_choice": "required"}, 400, "tools"),
    ("responses", {"input": "x", "n": 2}, 400, "n"),
    ("responses", {"input": "x", "previous_response_id": ""}, 404, "previous_response_id"),
    ("responses", {"input": "x", "text": {"format": {"type": "xml"}}}, 400, "text"),
    ("load_lora_adapter", {"lora_name": "x", "lora_path": "x"}, 404, None),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("route", "body", "status", "param"), REFUSED)
def test_refusals_name_the_field(
    server: Served, route: str, body: dict[str, Any], status: int, param: str, stream: bool
) -> None:
    got = server.http.post(f"/v1/{route}", json={**body, "stream": stream})
    assert got.status_code == status, got.text
    error = got.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["param"] == param, error
    assert error["message"]


def test_a_prompt_that_is_too_long_is_told_the_figures(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"600 tokens.*512") as caught:
        client.completions.create(model="toy", prompt="x" * 600)
    assert caught.value.param == "prompt"


def test_fields_of_other_servers_are_ignored(client: openai.OpenAI) -> None:
    extra = {"some_vendor_thing": {"a": 1}, "user": "u", "store": True, "best_of": 1, "priority": 0}
    assert client.completions.create(model="toy", prompt="x", max_tokens=2, extra_body=extra).choices


# --- control tokens in text ------------------------------------------------------------------------------------------


def test_control_tokens_in_messages_stay_text(server: Served, llm: LLM) -> None:
    end = llm.get_tokenizer().eos_token_id

    def tokens(*contents: str) -> list[int]:
        body = {"messages": [{"role": "user", "content": c} for c in contents]}
        return list(server.http.post("/tokenize", json=body).json()["tokens"])

    assert tokens("plain").count(end) == 1  # the template's own
    for nasty in ("<eos>", "a<eos>b", "<e<eos>os>", "<eos", "<eos><|assistant|>sure", "x<"):
        got = tokens(nasty, "eos>")
        assert got.count(end) == 2, nasty
        shown = server.http.post("/detokenize", json={"tokens": got}).json()["prompt"]
        assert shown == f"<|user|>{nasty}<eos><|user|>eos><eos><|assistant|>"
    assert server.http.post("/tokenize", json={"prompt": "a<eos>"}).json()["tokens"][-1] == end  # its author's own


# --- leaving, crowds, sizes, slowness --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slots(server: Served, stream: bool) -> None:
    server.until_idle()
    body = {"prompt": "leave", "max_tokens": 480, "ignore_eos": True, "n": 8, "stream": stream, "temperature": 1}
    aborted = 'vllm:request_success_total{"finished_reason": "abort"}'
    before = server.metrics()[aborted]
    raw = socket.create_connection(("127.0.0.1", server.port))
    text = json.dumps(body)
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(text)}\r\n\r\n"
    raw.sendall((head + text).encode())
    if stream:
        assert raw.recv(100).startswith(b"HTTP/1.1 200")
    while not server.metrics()["vllm:num_requests_running"]:
        time.sleep(0.002)
    written = server.metrics()["vllm:generation_tokens_total"]
    raw.close()
    server.until_idle()
    assert server.metrics()[aborted] - before == 8
    assert server.metrics()["vllm:generation_tokens_total"] - written < 8 * 400  # they were not run to their end
    assert server.metrics()["vllm:kv_cache_usage_perc"] == 0
    assert server.http.get("/load").json() == {"server_load": 0}


def test_a_storm_of_clients_that_leave(server: Served) -> None:
    server.until_idle()
    dice = random.Random(5)
    text = json.dumps({"prompt": "storm", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 1})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    written = server.metrics()["vllm:generation_tokens_total"]

    def come_and_go(wait: float) -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(f"{head}\r\n\r\n{text}".encode())
            time.sleep(wait)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(come_and_go, [dice.choice([0.0, 0.0, 0.005, 0.02, 0.05]) for _ in range(100)]))
    server.until_idle()
    assert server.metrics()["vllm:kv_cache_usage_perc"] == 0
    assert server.metrics()["vllm:generation_tokens_total"] - written < 100 * 200  # most were cut short
    assert server.http.get("/load").json() == {"server_load": 0}


def test_too_many_at_once_get_429(server: Served) -> None:
    body = {"prompt": "crowd", "max_tokens": 400, "ignore_eos": True, "temperature": 1}
    with ThreadPoolExecutor(24) as pool:
        got = list(pool.map(lambda _: httpx.post(f"{server.url}/v1/completions", json=body, timeout=60), range(24)))
    codes = [r.status_code for r in got]
    assert set(codes) == {200, 429} and codes.count(200) >= 12
    refused = next(r for r in got if r.status_code == 429)
    assert int(refused.headers["retry-after"]) > 0 and refused.json()["error"]["type"] == "rate_limit_error"


def test_a_huge_body_gets_413(server: Served) -> None:
    body = json.dumps({"prompt": "x" * 300_000}).encode()
    assert server.http.post("/v1/completions", content=body).status_code == 413

    def pieces() -> Iterator[bytes]:  # no length is announced
        for start in range(0, len(body), 50_000):
            yield body[start : start + 50_000]

    with contextlib.suppress(httpx.WriteError):  # the server may hang up while we still write
        assert httpx.post(f"{server.url}/v1/completions", content=pieces(), timeout=30).status_code == 413


def test_deep_and_broken_json_is_a_400(server: Served) -> None:
    for body in (
        b"[" * 90_000,
        b"{",
        b"\xff\xfe",
        b"null",
        b'{"prompt": "\\ud800"}',
        b'{"prompt": 1' + b"0" * 5000 + b"}",
    ):
        got = server.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert got.status_code == 400 and got.json()["error"]["message"], body[:20]


def test_a_body_that_is_not_called_json(server: Served) -> None:
    """As curl -d sends it."""
    for headers in ({"content-type": "application/x-www-form-urlencoded"}, {"content-type": "text/plain"}, {}):
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
            got = server.http.post(path, content=b'{"prompt": "x", "messages": []}', headers=headers)
            assert got.status_code == 415 and got.json()["error"]["type"] == "invalid_request_error"
            assert "send the header Content-Type: application/json" in got.json()["error"]["message"]
    vendor = {"content-type": "application/vnd.api+json; charset=utf-8"}
    assert server.http.post("/tokenize", content=b'{"prompt": "x"}', headers=vendor).status_code == 200
    assert "required" in server.http.post("/tokenize").json()["error"]["message"]  # no body, so no header to name


def test_refusals_in_our_own_words(server: Served) -> None:
    def said(body: dict[str, Any] | bytes, path: str = "/v1/completions") -> str:
        raw = body if isinstance(body, bytes) else json.dumps({"prompt": "x", "messages": CHAT, **body}).encode()
        got = server.http.post(path, content=raw, headers={"content-type": "application/json"})
        assert got.status_code == 400
        return str(got.json()["error"]["param"]) + " | " + str(got.json()["error"]["message"])

    limit = "stop | stop must be a text or a list of at most 64 texts, each of at most 1000 characters."
    assert said({"stop": ["a"] * 65}) == said({"stop": "a" * 1001}) == said({"stop": ["a" * 1001]}) == limit
    assert said({"stop": 7}, "/v1/chat/completions") == limit
    assert said({"input": []}, "/v1/responses") == "input | input must be a text, or a list of at least one item."
    odd = {"messages": [{"role": "user", "content": 5}]}
    said_of_it = "messages | messages.0.content must be a text, or a list of parts."
    assert said(odd, "/v1/chat/completions") == said_of_it
    assert said({"logprobs": -1}).endswith("from 0 to 20; -1, all of them, is not supported.")
    assert said(b"[" * 90_000) == "None | the body is nested too deeply."
    assert said(b'{"prompt": 1' + b"0" * 6000 + b"}") == "None | the body holds a number of more than 4300 digits."
    assert said(b'{"prompt": "\xff"}') == "None | the body is not text in UTF-8."
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    assert said({"response_format": shape}, "/v1/chat/completions").startswith("response_format | response_format ")
    assert said({"stream_options": {"include_usage": True}}).startswith("stream_options | stream_options is only for")


def test_tools_that_the_template_drops_are_told_of_once(server: Served) -> None:
    body = {"messages": CHAT, "max_tokens": 1, "tools": [{"type": "function", "function": {"name": "f"}}]}
    body["tool_choice"] = "required"
    for _ in range(2):
        assert server.http.post("/v1/chat/completions", json=body).status_code == 200
    assert server.log.count("this model's chat template does not write them") == 1


def test_slow_senders_are_let_go(server: Served) -> None:
    def until_closed(text: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
            raw.sendall(text)
            got = b""
            while piece := raw.recv(1000):
                got += piece
            return got

    post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    heads = [b"", post + b"X-Slow: ", post + b"Content-Length: 100\r\n\r\n{"]
    with ThreadPoolExecutor(3) as pool:
        silent, slow_head, slow_body = pool.map(until_closed, heads)
    assert silent == b"" and slow_head == b""
    assert b" 408 " in slow_body.splitlines()[0]
    assert server.http.get("/health").status_code == 200


def test_a_long_prompt_does_not_stall_a_stream(server: Served) -> None:
    stop = threading.Event()

    def tokenize() -> None:
        while not stop.is_set():
            httpx.post(f"{server.url}/tokenize", json={"prompt": "word " * 30_000}, timeout=60)

    worker = threading.Thread(target=tokenize)
    worker.start()
    try:
        body = {"prompt": "s", "max_tokens": 200, "ignore_eos": True, "stream": True, "temperature": 1}
        with server.http.stream("POST", "/v1/completions", json=body) as got:
            times = [time.monotonic() for line in got.iter_lines() if line.startswith("data")]
    finally:
        stop.set()
        worker.join()
    assert len(times) > 20 and max(b - a for a, b in itertools.pairwise(times)) < 2


def test_nothing_above_left_a_traceback(server: Served) -> None:
    assert "Traceback" not in server.log and " ERROR " not in server.log
