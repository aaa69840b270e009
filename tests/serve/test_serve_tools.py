"""Tools against a running server: forced calls, calls that the model writes, reasoning, streams, speculation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai import pydantic_function_tool
from pydantic import BaseModel
from served import Served, served

CHAT: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
PLACE = {"type": "string", "enum": ["Rome", "Oslo"]}
SCHEMA = {
    "type": "object",
    "properties": {"city": PLACE, "days": {"type": "integer", "enum": [1, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'
WRITTEN = f"<think>Rome, then.</think>One moment.\n{CALL}\n{CALL.replace('Rome', 'Oslo')}"


class Weather(BaseModel):
    """Tell the weather."""

    city: Literal["Rome", "Oslo"]


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    with served(toy_model, "--served-model-name", "toy", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def ask(client: openai.OpenAI, **body: Any) -> Any:
    asked: dict[str, Any] = {"model": "toy", "messages": CHAT, "tools": TOOLS, "max_tokens": 400, **body}
    return client.chat.completions.create(**asked)


def gathered(stream: Any) -> tuple[dict[str, Any], str]:
    """What the deltas of a stream add up to, checked for OpenAI's order: a call's name once, then its arguments."""
    said: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    ends = []
    for chunk in stream:
        delta = chunk.choices[0].delta
        said["content"] += delta.content or ""
        said["reasoning"] += (delta.model_extra or {}).get("reasoning") or ""
        for piece in delta.tool_calls or ():
            if piece.id is not None:
                assert piece.index == len(said["calls"]) and piece.type == "function" and not piece.function.arguments
                said["calls"].append([piece.function.name, ""])
            else:
                assert piece.index == len(said["calls"]) - 1 and piece.function.name is None
                said["calls"][-1][1] += piece.function.arguments
        ends.append(chunk.choices[0].finish_reason)
    assert set(ends[:-1]) == {None}
    return said, ends[-1]


def said_in(choice: Any) -> tuple[dict[str, Any], str]:
    """The same of an answer that came whole."""
    message = choice.message
    calls = [[call.function.name, call.function.arguments] for call in message.tool_calls or ()]
    reasoning = (message.model_extra or {}).get("reasoning") or ""
    return {"content": message.content or "", "reasoning": reasoning, "calls": calls}, choice.finish_reason


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_forced_calls_follow_their_schema(client: openai.OpenAI, choice: Any) -> None:
    body: Any = {"tool_choice": choice, "parallel_tool_calls": False, "temperature": 1, "seed": 3}
    whole = said_in(ask(client, **body).choices[0])
    assert whole == gathered(ask(client, **body, stream=True))
    said, end = whole
    [(name, arguments)] = said["calls"]
    assert not said["content"] and end == ("tool_calls" if choice == "required" else "stop")
    given = json.loads(arguments)
    assert name in ("weather", "now")
    if name == "weather":
        assert given["city"] in PLACE["enum"] and given["days"] in (1, 3) and len(given) == 2


@pytest.mark.parametrize("nested", [True, False])  # as chats have it, and as responses do
def test_some_of_the_tools_may_be_allowed(client: openai.OpenAI, nested: bool) -> None:
    def only(name: str) -> Any:
        allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": name}}]}
        return {"type": "allowed_tools", **({"allowed_tools": allowed} if nested else allowed)}

    said, _ = said_in(ask(client, tool_choice=only("now"), parallel_tool_calls=False).choices[0])
    assert [name for name, _ in said["calls"]] == ["now"]
    with pytest.raises(openai.BadRequestError, match="'never' is not among the tools"):
        ask(client, tool_choice=only("never"))


def test_a_function_without_parameters_takes_none(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "ping"}}]
    said, end = said_in(ask(client, tools=tools, tool_choice="required", parallel_tool_calls=False).choices[0])
    assert (said["calls"], end) == ([["ping", "{}"]], "tool_calls")


def test_calls_that_the_model_writes_are_read_out_of_its_text(client: openai.OpenAI) -> None:
    arguments = '{"city": "Rome", "days": 3}'
    wanted = {
        "content": "One moment.",
        "reasoning": "Rome, then.",
        "calls": [["weather", arguments], ["weather", arguments.replace("Rome", "Oslo")]],
    }
    body: Any = {"extra_body": {"guided_choice": [WRITTEN]}}
    assert said_in(ask(client, **body).choices[0]) == (wanted, "tool_calls")
    one = said_in(ask(client, **body, parallel_tool_calls=False).choices[0])
    assert one == ({**wanted, "calls": wanted["calls"][:1]}, "tool_calls")
    hidden = said_in(ask(client, extra_body={**body["extra_body"], "include_reasoning": False}).choices[0])
    assert hidden == ({**wanted, "reasoning": ""}, "tool_calls")
    cut = said_in(ask(client, **body, max_tokens=60).choices[0])
    assert cut[1] == "length"


def test_drafts_of_any_length_leave_the_events_as_they_are(client: openai.OpenAI, server: Served) -> None:
    """The prompt holds the answer, so that n-gram drafts it and steps bring several tokens at once."""
    told: Any = [{"role": "user", "content": WRITTEN}]
    body: Any = {"messages": told, "stream": True, "stream_options": {"include_usage": True}}
    found, chunks = [], []
    for tokens in (0, 1, 2, 3, 4):
        speculative = {"num_speculative_tokens": tokens} if tokens else {"enabled": False}
        extra = {"guided_choice": [WRITTEN], "speculative": speculative, "return_token_ids": True}
        came = list(ask(client, **body, extra_body=extra))
        found.append(gathered(chunk for chunk in came if chunk.choices))
        sizes = [len(chunk.choices[0].model_extra.get("token_ids") or ()) for chunk in came if chunk.choices]
        chunks.append(max(sizes))
    assert found[0][0]["reasoning"] and found[0][1] == "tool_calls"
    assert all(one == found[0] for one in found[1:])
    assert chunks[0] == 1 and chunks[-1] > 2  # they were drafted indeed


def test_text_stays_text(client: openai.OpenAI) -> None:
    for text in ("No call.", "<tool_call>\nnone\n</tool_call>", '{"name": "weather"}'):
        for stream in (False, True):
            got = ask(client, extra_body={"guided_choice": [text]}, stream=stream)
            assert (gathered(got) if stream else said_in(got.choices[0])) == (
                {"content": text, "reasoning": "", "calls": []},
                "stop",
            )
    none = ask(client, tool_choice="none", extra_body={"guided_choice": [CALL]}).choices[0]
    assert said_in(none) == ({"content": CALL, "reasoning": "", "calls": []}, "stop")


def test_several_answers_have_calls_of_their_own(client: openai.OpenAI) -> None:
    got = ask(client, n=3, tool_choice="required", parallel_tool_calls=False, temperature=1, seed=5)
    ids = [call.id for choice in got.choices for call in choice.message.tool_calls]
    assert len(ids) == len(set(ids)) == 3


def test_the_client_reads_arguments_by_itself(client: openai.OpenAI) -> None:
    tool: Any = pydantic_function_tool(Weather, name="weather")
    asked: Any = {"model": "toy", "messages": CHAT, "tools": [tool], "tool_choice": NAMED, "max_tokens": 60}
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        [call] = stream.get_final_completion().choices[0].message.tool_calls or []
    assert call.function.parsed_arguments in (Weather(city="Rome"), Weather(city="Oslo"))


def test_a_schema_that_cannot_be_read_is_told_by_name(server: Served) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "nothing"}}}
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        body = {"messages": CHAT, "tools": [tool], "tool_choice": choice}
        got = server.http.post("/v1/chat/completions", json=body)
        assert got.status_code == 400 and got.json()["error"]["param"] == "tools", got.text
    two = {"$defs": {"x": {"type": "string"}}}, {"$defs": {"x": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": one}} for i, one in enumerate(two)]
    got = server.http.post("/v1/chat/completions", json={**body, "tools": tools, "tool_choice": "required"})
    assert got.status_code == 400 and "differently" in got.json()["error"]["message"]
    both = {**body, "tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}
    assert server.http.post("/v1/chat/completions", json=both).json()["error"]["param"] == "tool_choice"


def test_pieces_of_one_kind_come_in_one_order(client: openai.OpenAI) -> None:
    kinds = []
    for chunk in ask(client, stream=True, extra_body={"guided_choice": [WRITTEN]}):
        delta = chunk.choices[0].delta
        kinds += ["reasoning"] * ("reasoning" in (delta.model_extra or {})) + ["content"] * bool(delta.content)
        kinds += [f"call {piece.index}" for piece in delta.tool_calls or ()]
    assert [kind for kind, _ in groupby(kinds)] == ["reasoning", "content", "call 0", "call 1"]
