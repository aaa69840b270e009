"""/v1/responses with the real client: items, events, tools, reasoning, and responses that are gone on from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel
from served import Served, served

from augury.serve.errors import ApiError
from augury.serve.responses.conversation import messages
from augury.serve.responses.store import Store

TOOL: Any = {
    "type": "function",
    "name": "weather",
    "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
WRITTEN = f"<think>Rome, then.</think>One moment.\n{CALL}"


class Verdict(BaseModel):
    """A structured answer."""

    verdict: Literal["yes", "no"]


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    with served(toy_model, "--served-model-name", "toy", "--api-key", "a", "--api-key", "b", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="a", max_retries=0, timeout=60) as made:
        yield made


def ask(client: openai.OpenAI, text: str | None = None, **body: Any) -> Any:
    extra = {"extra_body": {"structured_outputs": {"choice": [text]}}} if text is not None else {}
    return client.responses.create(**{"model": "toy", "input": "Hi", "max_output_tokens": 200, **extra, **body})


def shown(items: list[Any]) -> list[dict[str, Any]]:
    """Output items without the ids that are made for each."""
    return [
        {k: v for k, v in item.model_dump().items() if k not in ("id", "call_id") and v is not None} for item in items
    ]


def test_a_text(client: openai.OpenAI) -> None:
    got = ask(client, "Hello.", instructions="Be brief.", metadata={"k": "v"})
    assert got.status == "completed" and got.output_text == "Hello." and got.instructions == "Be brief."
    assert got.usage.output_tokens == len("Hello.") and got.usage.total_tokens > got.usage.output_tokens
    cut = ask(client, "Hello there.", max_output_tokens=3)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    assert cut.output_text == "Hel" and cut.output[0].status == "incomplete"


def test_reasoning_text_and_a_call(client: openai.OpenAI) -> None:
    got = ask(client, WRITTEN, tools=[TOOL])
    reasoning, said, call = got.output
    assert reasoning.type == "reasoning" and reasoning.content[0].text == "Rome, then."
    assert said.content[0].text == "One moment."
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Rome"}
    assert 0 < got.usage.output_tokens_details.reasoning_tokens < got.usage.output_tokens


@pytest.mark.parametrize("speculative", [{"enabled": False}, {"num_speculative_tokens": 4}])
def test_the_events_of_a_stream_tell_the_same(client: openai.OpenAI, speculative: dict[str, Any]) -> None:
    whole = ask(client, WRITTEN, tools=[TOOL])
    extra = {"structured_outputs": {"choice": [WRITTEN]}, "speculative": speculative}
    events = list(ask(client, input=WRITTEN, tools=[TOOL], stream=True, extra_body=extra))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    final = events[-1].response
    assert shown(final.output) == shown(whole.output)
    pieces: dict[str, str] = {}
    for event in events:
        if event.type.endswith(".delta"):
            pieces[event.item_id] = pieces.get(event.item_id, "") + event.delta
    assert list(pieces.values()) == ["Rome, then.", "One moment.", '{"city": "Rome"}']
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert shown(done) == shown(final.output)
    added = [event.item.id for event in events if event.type == "response.output_item.added"]
    assert added == [item.id for item in final.output]


def test_the_clients_own_stream_and_parse(client: openai.OpenAI) -> None:
    asked: Any = {"model": "toy", "input": "Well?", "text_format": Verdict, "max_output_tokens": 100}
    bias = {str(token): -100 for token in (9, 10, 13, 32)}  # white space
    got = client.responses.parse(**asked, extra_body={"logit_bias": bias})
    assert isinstance(got.output_parsed, Verdict)
    with client.responses.stream(**asked, extra_body={"logit_bias": bias}) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_response().output_parsed, Verdict)


def test_a_call_and_its_output_go_round(client: openai.OpenAI) -> None:
    forced: Any = {"type": "function", "name": "weather"}
    first = ask(client, tools=[TOOL], tool_choice=forced)
    [call] = first.output
    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    by_id = ask(client, "Sunny.", previous_response_id=first.id, input=[output], store=False)
    by_items = ask(client, "Sunny.", input=[{"role": "user", "content": "Hi"}, call.model_dump(), output])
    assert by_id.output_text == "Sunny." and by_id.usage.input_tokens == by_items.usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(by_id.id)  # it was not to be stored


def test_responses_belong_to_a_key(client: openai.OpenAI) -> None:
    mine = ask(client, "Mine.")
    assert client.responses.retrieve(mine.id).output_text == "Mine."
    other = client.with_options(api_key="b")
    for attempt in (
        lambda: other.responses.retrieve(mine.id),
        lambda: other.responses.delete(mine.id),
        lambda: ask(other, previous_response_id=mine.id),
    ):
        with pytest.raises(openai.NotFoundError):
            attempt()
    client.responses.delete(mine.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(mine.id)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"tools": [{"type": "web_search"}]}, "tools"),
    ({"input": []}, "input"),
    ({"input": [{"type": "image_generation_call"}]}, "input"),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"text": {"format": {"type": "xml"}}}, "text"),
    ({"temperature": -1}, "temperature"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED)
def test_refusals_name_the_field(server: Served, body: dict[str, Any], param: str) -> None:
    got = server.http.post("/v1/responses", json={"input": "x", **body}, headers={"Authorization": "Bearer a"})
    assert got.status_code == 400 and got.json()["error"]["param"] == param, got.text


ODD: list[Any] = [
    None, True, 0, -1, 10**30, 1.5, "", "x", "\ud800", [], [[]], {}, [None], [{}], ["a"], {"a": 1}, {"a": "\ud800"},
    {"type": "function"}, {"type": "function", "name": "f"}, [{"type": "function", "name": "f", "parameters": []}],
    [{"type": "message"}], [{"role": "user", "content": [{"type": "input_text"}]}], {"format": 3}, {"effort": []},
    [{"type": "function_call"}], [{"type": "function_call", "name": {}, "arguments": []}], [{"type": "reasoning"}],
    [{"type": "function_call_output", "output": {}}], {"format": {"type": "json_schema"}}, "required", "auto",
]  # fmt: skip
FIELDS = tuple(
    """
    input instructions tools tool_choice text reasoning metadata include previous_response_id store stream
    max_output_tokens parallel_tool_calls chat_template_kwargs truncation
    """.split()
)


def test_odd_bodies_are_answered_or_refused(server: Served) -> None:
    dice = Random(5)
    seen = set()
    for _ in range(250):
        body: dict[str, Any] = {"input": "hi", "max_output_tokens": 2}
        body |= {dice.choice(FIELDS): dice.choice(ODD) for _ in range(dice.randint(1, 3))}
        raw = json.dumps(body)
        headers = {"Authorization": "Bearer a", "Content-Type": "application/json"}
        got = server.http.post("/v1/responses", content=raw, headers=headers)
        assert got.status_code in (200, 400, 404), (raw, got.text)
        seen.add(got.status_code)
    assert {200, 400} <= seen and "Traceback" not in server.log
    far = {"input": "hi", "max_output_tokens": 2, "metadata": {"x": "far"}}
    raw = json.dumps(far).replace('"far"', "1e999")
    assert server.http.post("/v1/responses", content=raw, headers=headers).status_code == 400


# --- what needs no server --------------------------------------------------------------------------------------------


def test_items_become_messages() -> None:
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "y"}]},
    ]
    found = messages(items, "Be brief.")
    assert [said["role"] for said in found] == ["system", "user", "assistant", "tool", "assistant"]
    assert found[1]["content"] == "ab" and found[2]["reasoning_content"] == "hm"
    assert [call["function"]["name"] for call in found[2]["tool_calls"]] == ["f", "g"]
    assert found[3]["tool_call_id"] == "1" and found[4]["content"] == "y"


def test_responses_are_forgotten_by_age_and_by_size() -> None:
    clock = [0.0]
    store = Store(keys=2, most=4000, seconds=60, now=lambda: clock[0])  # 2000 bytes for each key

    def keep(client: str, name: str, size: int = 300) -> None:
        store.keep(client, name, b"{}", b"x" * size)

    keep("a", "old")
    for number in range(20):
        keep("b", f"b{number}")
    assert store.get("a", "old").items  # the other key's many do not push it out
    assert 0 < store.held("b") <= 2000 and store.get("b", "b19")
    with pytest.raises(ApiError):
        store.get("b", "b0")
    keep("a", "huge", 5000)
    with pytest.raises(ApiError):
        store.get("a", "huge")
    clock[0] = 61
    with pytest.raises(ApiError, match="an hour"):
        store.get("a", "old")
    assert store.held("a") == 0 and store.held("b") > 0
    keep("a", "new")
    assert store.held("b") == 0  # what is too old is let go of, whoever comes
