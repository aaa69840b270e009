"""/v1/messages: content blocks, events, tools, thinking and errors in Anthropic's shapes, without its client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from served import Served, served

from augury.serve.errors import ApiError
from augury.serve.messages.blocks import BlockWriter
from augury.serve.messages.conversation import conversation
from augury.serve.parsers.events import ARGUMENTS, CALL, CONTENT, REASONING, Event

TOOL: Any = {
    "name": "weather",
    "description": "The weather of a city.",
    "strict": True,
    "input_schema": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
}
CALLED = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
WRITTEN = f"<think>Rome, then.</think>One moment.\n{CALLED}"
BLOCKS = [
    {"type": "thinking", "thinking": "Rome, then.", "signature": ""},
    {"type": "text", "text": "One moment."},
    {"type": "tool_use", "name": "weather", "input": {"city": "Rome"}},
]


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    with served(toy_model, "--served-model-name", "toy", "--api-key", "a", "--api-key", "b", *flags) as running:
        running.http.headers["x-api-key"] = "a"
        yield running


def post(server: Served, text: str | None = None, path: str = "/v1/messages", **body: Any) -> httpx.Response:
    extra = {"structured_outputs": {"choice": [text]}} if text is not None else {}
    asked = {"model": "toy", "max_tokens": 200, "messages": [{"role": "user", "content": "Hi"}], **extra, **body}
    return server.http.post(path, json={name: value for name, value in asked.items() if value is not None})


def told(server: Served, text: str | None = None, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream; the name of each is its type."""
    lines = post(server, text, stream=True, **body).text.split("\n\n")
    pairs = [line.split("\n", 1) for line in lines if line]
    events = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name for name, _ in pairs] == [f"event: {event['type']}" for event in events]
    return events


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A message out of the events of its stream."""
    message = events[0]["message"]
    inputs: dict[int, str] = {}
    for event in events[1:]:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
            else:
                block[block["type"]] += delta[block["type"]]
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] = event["usage"]
    for index, written in inputs.items():
        message["content"][index]["input"] = json.loads(written)
    return dict(message)


def bare(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in block.items() if name != "id"} for block in blocks]


def test_a_text(server: Served) -> None:
    got = post(server, "Hello.", system="Be brief.").json()
    assert (got["type"], got["role"], got["model"], got["stop_reason"]) == ("message", "assistant", "toy", "end_turn")
    assert got["content"] == [{"type": "text", "text": "Hello."}] and got["usage"]["output_tokens"] == len("Hello.")
    cut = post(server, "Hello there.", max_tokens=3).json()
    assert cut["content"][0]["text"] == "Hel" and cut["stop_reason"] == "max_tokens"
    stopped = post(server, "Hello there.", stop_sequences=[" th"]).json()
    assert stopped["content"][0]["text"] == "Hello"
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " th")


def test_thinking_text_and_a_call(server: Served) -> None:
    got = post(server, WRITTEN, tools=[TOOL]).json()
    assert bare(got["content"]) == BLOCKS and got["stop_reason"] == "tool_use"
    assert got["content"][2]["id"].startswith("toolu_")
    hidden = {"type": "enabled", "budget_tokens": 20, "display": "omitted"}
    assert bare(post(server, WRITTEN, tools=[TOOL], thinking=hidden).json()["content"]) == BLOCKS[1:]
    # Switched off, the template says so to the model, and what it writes is text.
    off = post(server, WRITTEN, tools=[TOOL], thinking={"type": "disabled"}).json()["content"]
    assert [block["type"] for block in off] == ["text", "tool_use"]


@pytest.mark.parametrize("speculative", [{"enabled": False}, {"num_speculative_tokens": 4}])
def test_the_events_of_a_stream_tell_the_same(server: Served, speculative: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"tools": [TOOL], "speculative": speculative}
    asked["messages"] = [{"role": "user", "content": WRITTEN}]
    events = told(server, WRITTEN, **asked)
    assert [event["type"] for event in events][-2:] == ["message_delta", "message_stop"]
    whole, streamed = post(server, WRITTEN, **asked).json(), put_together(events)
    assert bare(streamed["content"]) == bare(whole["content"]) == BLOCKS
    assert streamed["stop_reason"] == whole["stop_reason"]
    used = [one["usage"] for one in (whole, streamed)]
    assert used[0]["output_tokens"] == used[1]["output_tokens"]
    assert len({one["input_tokens"] + one["cache_read_input_tokens"] for one in used}) == 1
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert stops == [0, 1, 2]


def test_any_cut_of_the_text_gives_the_same_blocks() -> None:
    """Events come in pieces of any size; the blocks do not depend on it."""
    events = [Event(REASONING, "hm"), Event(CONTENT, "So."), Event(CALL, "f"), Event(ARGUMENTS, '{"a": [1, "é"]}')]
    whole = BlockWriter()
    for event in events:
        list(whole.write(event))
    list(whole.close())
    for seed in range(50):
        random, cut = Random(seed), BlockWriter()
        for event in events:
            pieces = [event.text] if event.kind == CALL else []
            rest = "" if event.kind == CALL else event.text
            while rest:
                size = random.randint(1, len(rest))
                pieces.append(rest[:size])
                rest = rest[size:]
            for piece in pieces:
                list(cut.write(Event(event.kind, piece)))
        list(cut.close())
        assert bare(cut.blocks) == bare(whole.blocks)


def test_arguments_that_were_cut_off_are_as_much_as_is_there(server: Served) -> None:
    got = post(server, WRITTEN, tools=[TOOL], max_tokens=len(WRITTEN) - 20).json()
    assert got["stop_reason"] == "max_tokens" and got["content"][-1]["input"].keys() <= {"city"}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_forced_call_and_its_result_go_round(server: Served, choice: dict[str, Any]) -> None:
    first = post(server, tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True}).json()
    [call] = first["content"]
    assert first["stop_reason"] == "tool_use" and call["input"]["city"] in ("Rome", "Oslo")
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "sun"}]}
    again = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]},
    ]
    got = post(server, "Sunny.", messages=again, tools=[TOOL]).json()
    assert got["content"] == [{"type": "text", "text": "Sunny."}]
    assert post(server, "Sunny.", tools=[TOOL], tool_choice={"type": "none"}).json()["stop_reason"] == "end_turn"


def test_blocks_as_messages_of_a_chat() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
    bad = {"type": "tool_result", "tool_use_id": "t1", "content": "no such city", "is_error": True}
    made = conversation(
        [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, call]},
            {"role": "user", "content": [bad, {"type": "text", "text": "Try Oslo."}]},
        ],
    )
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert made == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "Error: no such city"},
        {"role": "user", "content": "Try Oslo."},
    ]
    with pytest.raises(ApiError, match=r"messages\.0\.content\.0: blocks of type 'image'"):
        conversation(None, [{"role": "user", "content": [{"type": "image", "source": {}}]}])


def test_an_answer_that_has_begun_goes_on(server: Served) -> None:
    begun = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hel"}]
    open_turn = post(server, path="/v1/messages/count_tokens", messages=begun, max_tokens=None).json()["input_tokens"]
    asked = post(server, path="/v1/messages/count_tokens", messages=begun[:1], max_tokens=None).json()["input_tokens"]
    assert open_turn == asked + len("Hel")
    assert post(server, "lo.", messages=begun).json()["content"][0]["text"] == "lo."


def test_tokens_are_counted_as_they_are_used(server: Served) -> None:
    counted = post(server, path="/v1/messages/count_tokens", system="Be brief.", max_tokens=None).json()
    used = post(server, "Hello.", system="Be brief.").json()["usage"]
    assert counted == {"input_tokens": used["input_tokens"] + used["cache_read_input_tokens"]}


def test_a_structured_answer(server: Served) -> None:
    schema = {"type": "object", "properties": {"ok": {"enum": ["yes", "no"]}}, "required": ["ok"]}
    form = {"format": {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}}
    bias = {str(token): -100 for token in (9, 10, 13, 32)}
    got = post(server, output_config=form, logit_bias=bias, temperature=0).json()
    assert json.loads(got["content"][0]["text"])["ok"] in ("yes", "no")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "instructions go into system"),
        ({"messages": [{"role": "user", "content": 3}]}, "content blocks"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "does not run here"),
        ({"tools": [TOOL], "tool_choice": {"type": "auto or so"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "nobody"}}, "not among the tools"),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, "below max_tokens"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"n": 2}, "n: there is one answer"),
        ({"stop_sequence": ["x"]}, "did you mean 'stop_sequences'"),
        ({"output_config": {"format": {"type": "yaml"}}}, "output_config.format"),
        ({"use_beam_search": True}, "beam search"),
    ],
)
def test_what_is_wrong_is_told_in_their_shape(server: Served, body: dict[str, Any], says: str) -> None:
    got = post(server, **body)
    told_of = got.json()
    assert got.status_code == 400 and told_of["type"] == "error" and told_of["error"]["type"] == "invalid_request_error"
    assert says in told_of["error"]["message"]


def test_other_errors_have_their_shape_too(server: Served) -> None:
    def kind(got: httpx.Response) -> tuple[int, str]:
        return got.status_code, got.json()["error"]["type"]

    assert kind(post(server, model="other")) == (404, "not_found_error")
    assert kind(httpx.post(f"{server.url}/v1/messages", json={})) == (401, "authentication_error")
    wrong = httpx.post(f"{server.url}/v1/messages", content=b"{", headers={"x-api-key": "a"})
    assert wrong.status_code in (400, 415) and wrong.json()["type"] == "error"
    assert server.http.get("/v1/messages").json()["type"] == "error"
    # A key in their header opens nothing else.
    assert httpx.get(f"{server.url}/v1/models", headers={"x-api-key": "a"}).status_code == 401


def test_routes_that_are_not_here_say_why(server: Served) -> None:
    headers = {"Authorization": "Bearer a"}
    for name in ("embeddings", "rerank"):
        got = httpx.post(f"{server.url}/v1/{name}", json={"model": "toy", "input": "x"}, headers=headers)
        assert got.status_code == 404 and "pooling models" in got.json()["error"]["message"]
