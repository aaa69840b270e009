"""A task of two tools by the clients that agents are built on, each as its users write it; see run_clients.py.

A client asks for the weather (forced by name), then for the other tool (`required`), then for a text; frameworks are in
agent_frameworks.py. Tools check what they are given against their schemas and note it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

QUESTION = "What is the weather in Oslo, and what time is it there? Use the tools, then say it in one sentence."
CITY = {"type": "string", "enum": ["Rome", "Oslo"]}
RESULTS = {"weather": "4 degrees and rain", "clock": "10:04"}
TEXT = 24  # tokens of the text at the end
SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {"city": CITY, "days": {"type": "integer", "enum": [1, 3]}},
    "clock": {"city": CITY},
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The {name} of a city.",
            "parameters": {
                "type": "object",
                "properties": schema,
                "required": list(schema),
                "additionalProperties": False,
            },
        },
    }
    for name, schema in SCHEMAS.items()
]
Event = tuple[str, ...]  # ("call", name, arguments) or ("text", what was said)
TURNS: tuple[Any, ...] = ({"type": "function", "function": {"name": "weather"}}, "required", "none")


class Way:
    """How a task is asked: where, of which model, with what beside it, streamed or not."""

    def __init__(self, url: str, model: str, speculative: dict[str, Any], stream: bool) -> None:
        self.url, self.model, self.stream = f"{url}/v1", model, stream
        self.extra: dict[str, Any] = {"speculative": speculative}
        self.events: list[Event] = []

    def beside(self, choice: Any) -> dict[str, Any]:
        """What goes beside OpenAI's fields; the text at the end has a few tokens, whatever the model would say."""
        return {**self.extra, "min_tokens": 8} if choice == "none" else self.extra

    @property
    def left(self) -> list[Any]:
        """The tools that have not been called, or all when none is left."""
        return [tool for tool in TOOLS if not self.has_called(tool["function"]["name"])] or TOOLS

    def has_called(self, name: str) -> bool:
        """Whether a tool has run."""
        return any(event[1] == name for event in self.events)

    def called(self, name: str, arguments: Any) -> str:
        """Note a call; what the tool gives back."""
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        assert given.keys() == SCHEMAS[name].keys(), (name, given)
        assert all(given[key] in schema["enum"] for key, schema in SCHEMAS[name].items()), (name, given)
        self.events.append(("call", name, json.dumps(given)))
        return RESULTS[name]

    def said(self, text: str | None) -> None:
        """Note the text at the end."""
        assert text
        self.events.append(("text", text))


def with_openai(way: Way) -> None:
    """The openai package: chat."""
    import openai

    with openai.OpenAI(base_url=way.url, api_key="none", max_retries=0, timeout=600) as client:

        def ask(**body: Any) -> Any:
            if body["tool_choice"] == "none" or not way.stream:  # the helper refuses an answer that is cut off
                return client.chat.completions.create(**body).choices[0].message
            with client.chat.completions.stream(**body) as stream:
                for _ in stream:
                    pass
                return stream.get_final_completion().choices[0].message

        _chat(way, ask)


def with_litellm(way: Way) -> None:
    """litellm's `completion`, its own OpenAI provider."""
    import litellm

    litellm.suppress_debug_info = True

    def ask(**body: Any) -> Any:
        body["model"] = f"openai/{way.model}"
        got = litellm.completion(**body, api_base=way.url, api_key="none", stream=way.stream)
        if way.stream:
            got = litellm.stream_chunk_builder(list(got), messages=body["messages"])
        return got.choices[0].message

    _chat(way, ask)


def _chat(way: Way, ask: Callable[..., Any]) -> None:
    """The loop of a client that leaves it to its caller."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for choice in TURNS:
        body = {"model": way.model, "messages": messages, "tools": way.left, "tool_choice": choice}
        body["extra_body"] = way.beside(choice)
        message = ask(**body, temperature=0, max_tokens=TEXT if choice == "none" else 200, parallel_tool_calls=False)
        if choice == "none":
            way.said(message.content)
            return
        [call] = message.tool_calls
        result = way.called(call.function.name, call.function.arguments)
        asked = {"name": call.function.name, "arguments": call.function.arguments}
        messages += [
            {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": asked}]},
            {"role": "tool", "tool_call_id": call.id, "content": result},
        ]


def with_langchain(way: Way) -> None:
    """langchain's ChatOpenAI and `bind_tools`."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    messages: list[Any] = [HumanMessage(QUESTION)]
    for choice in ("weather", "required", "none"):
        chat = ChatOpenAI(
            model=way.model,
            base_url=way.url,
            api_key="none",
            temperature=0,
            max_retries=0,
            extra_body=way.beside(choice),
            max_tokens=TEXT if choice == "none" else 200,
        )
        bound = chat.bind_tools(way.left, tool_choice=choice, parallel_tool_calls=False, strict=True)
        if way.stream:
            pieces = iter(bound.stream(messages))
            message = next(pieces)
            for piece in pieces:
                message = message + piece
        else:
            message = bound.invoke(messages)
        if choice == "none":
            way.said(str(message.content))
            return
        [call] = message.tool_calls
        result = way.called(call["name"], call["args"])
        messages += [message, ToolMessage(result, tool_call_id=call["id"])]


def with_npm(way: Way, folder: Path) -> None:
    """The npm client, `openai`, in Node."""
    script = Path(__file__).with_name("agent_client.mjs")
    told = {
        "url": way.url,
        "model": way.model,
        "extra": way.extra,
        "stream": way.stream,
        "question": QUESTION,
        "tools": TOOLS,
        "turns": TURNS,
        "results": RESULTS,
        "most": TEXT,
        "last": way.beside("none"),
    }
    ran = subprocess.run(
        ["node", str(script), str(folder.resolve()), json.dumps(told)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    for kind, *rest in json.loads(ran.stdout):
        if kind == "call":
            way.called(*rest)
        else:
            way.said(*rest)
