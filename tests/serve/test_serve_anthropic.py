"""/v1/messages with Anthropic's own client, where it is installed: messages, streams, tools, counts, errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served, served

anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed: pip install 'augury[dev]'")

TOOLS: Any = [
    {
        "name": name,
        "description": f"The {name} of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
        "strict": True,
    }
    for name in ("weather", "time")
]
CALLED = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
WRITTEN = f"<think>Rome, then.</think>One moment.\n{CALLED}"


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    with served(toy_model, "--served-model-name", "toy", "--api-key", "a", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.url, api_key="a", max_retries=0, timeout=60) as made:
        yield made


def asked(text: str | None = None, **body: Any) -> dict[str, Any]:
    extra = {"structured_outputs": {"choice": [text]}} if text is not None else {}
    extra |= body.pop("extra_body", {})
    given = {"model": "toy", "max_tokens": 200, "messages": [{"role": "user", "content": "Hi"}], **body}
    return {**given, "extra_body": extra}


def shown(message: Any) -> list[dict[str, Any]]:
    return [{k: v for k, v in block.model_dump().items() if k != "id" and v is not None} for block in message.content]


def test_a_message(client: Any) -> None:
    got = client.messages.create(**asked("Hello.", system="Be brief."))
    assert got.content[0].text == "Hello." and got.stop_reason == "end_turn" and got.usage.output_tokens == 6
    counted = client.messages.count_tokens(
        model="toy", system="Be brief.", messages=[{"role": "user", "content": "Hi"}]
    )
    assert counted.input_tokens == got.usage.input_tokens + got.usage.cache_read_input_tokens


@pytest.mark.parametrize("speculative", [{"enabled": False}, {"num_speculative_tokens": 4}])
def test_a_stream_is_the_message(client: Any, speculative: dict[str, Any]) -> None:
    extra = {"speculative": speculative}
    whole = client.messages.create(**asked(WRITTEN, tools=TOOLS, extra_body=extra))
    with client.messages.stream(**asked(WRITTEN, tools=TOOLS, extra_body=extra)) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert shown(final) == shown(whole) and final.stop_reason == whole.stop_reason == "tool_use"
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "input_json" in kinds and "thinking" in kinds


def test_a_task_of_two_tools(client: Any) -> None:
    """A loop as agents have it, its calls forced by schema: the same calls with speculation and without."""

    def loop(speculative: dict[str, Any]) -> list[Any]:
        messages: list[Any] = [{"role": "user", "content": "Weather, then time, in Rome?"}]
        seen: list[Any] = []
        for tool in ("weather", "time"):
            choice = {"type": "tool", "name": tool}
            extra = {"speculative": speculative, "temperature": 0}
            got = client.messages.create(**asked(messages=messages, tools=TOOLS, tool_choice=choice, extra_body=extra))
            [call] = got.content
            seen.append((call.name, call.input))
            result = {"type": "tool_result", "tool_use_id": call.id, "content": f"{tool}: fine"}
            messages += [{"role": "assistant", "content": got.content}, {"role": "user", "content": [result]}]
        seen.append(shown(client.messages.create(**asked("Done.", messages=messages, tools=TOOLS))))
        return seen

    fast, plain = loop({"num_speculative_tokens": 4}), loop({"enabled": False})
    assert fast == plain and [name for name, _ in fast[:2]] == ["weather", "time"]
    assert all(given["city"] in ("Rome", "Oslo") for _, given in fast[:2])


def test_errors_are_the_clients_own(server: Served, client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="not served here"):
        client.messages.create(**asked(model="other"))
    with pytest.raises(anthropic.BadRequestError, match="blocks of type 'image'"):
        client.messages.create(**asked(messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]))
    stranger = anthropic.Anthropic(base_url=server.url, api_key="nobody", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(**asked())
