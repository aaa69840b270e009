"""A task of two tools by the clients that agents are built on, each as its users write it; see run_clients.py.

A client asks for the weather (forced by name), then for the other tool (`required`), then for a text; a framework of
agents asks with `required` throughout. Tools check what they are given against their schemas and note it.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

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
ID = re.compile(r"chatcmpl-tool-[0-9a-f]+|(?<=\")\\n(?=Calling tools)")
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
            model=way.model, base_url=way.url, api_key="none", temperature=0, extra_body=way.beside(choice), max_retries=0,
            max_tokens=TEXT if choice == "none" else 200,
        )  # fmt: skip
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


def with_smolagents(way: Way, question: str = QUESTION, templates: Any = None) -> None:
    """A smolagents ToolCallingAgent: it asks with `required` until the model calls final_answer."""
    from smolagents import OpenAIModel, ToolCallingAgent

    class Closed(OpenAIModel):  # type: ignore[misc]
        """Its schemas allow arguments that no tool of ours takes; its prompts hold random ids, and a line feed more where
        the answer was streamed."""

        def _prepare_completion_kwargs(self, *given: Any, **more: Any) -> Any:
            made = super()._prepare_completion_kwargs(*given, **more)
            made["messages"] = json.loads(ID.sub("", json.dumps(made["messages"])))
            for tool in made.get("tools", ()):
                tool["function"]["parameters"]["additionalProperties"] = False
            return made

    done = _smolagents_tool(way, "final_answer", {"answer": {"type": "string", "enum": ["Rain at 10:04.", "No idea."]}})
    left = {name: _smolagents_tool(way, name, schema) for name, schema in SCHEMAS.items()}

    def offer(*_: Any, **__: Any) -> None:  # each tool once, the answer when both have run
        agent.tools = {n: one for n, one in left.items() if not way.has_called(n)} or {"final_answer": done}

    model = Closed(
        model_id=way.model, api_base=way.url, api_key="none", temperature=0, max_tokens=200,
        parallel_tool_calls=False, extra_body=way.extra,
    )  # fmt: skip
    agent: Any = ToolCallingAgent(
        tools=[*left.values(), done], model=model, stream_outputs=way.stream, max_steps=4, verbosity_level=0,
        prompt_templates=templates, step_callbacks=[offer],
    )  # fmt: skip
    offer()
    way.said(agent.run(question))


def _smolagents_tool(way: Way, named: str, schema: dict[str, Any]) -> Any:
    from smolagents import Tool

    class Made(Tool):  # type: ignore[misc]
        name, description, output_type = named, f"The {named} of a city.", "string"
        inputs = {key: {**one, "description": key} for key, one in schema.items()}  # noqa: RUF012
        skip_forward_signature_validation = True

        def forward(self, **given: Any) -> str:
            return str(given["answer"]) if named == "final_answer" else way.called(named, given)

    return Made()


def with_pydantic_ai(way: Way) -> None:
    """A pydantic-ai Agent with a structured answer: each request is `required`, and says which tools there are."""
    from pydantic import BaseModel
    from pydantic_ai import Agent
    from pydantic_ai.capabilities import PrepareOutputTools, PrepareTools
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Answer(BaseModel):
        """The answer."""

        summary: Literal["Rain at 10:04.", "No idea."]

    async def offered(_: Any, tools: list[Any]) -> list[Any]:  # each tool once
        return [tool for tool in tools if not way.has_called(tool.name)]

    async def answers(_: Any, tools: list[Any]) -> list[Any]:  # the answer when both have run
        return tools if all(way.has_called(name) for name in SCHEMAS) else []

    model = OpenAIChatModel(way.model, provider=OpenAIProvider(base_url=way.url, api_key="none"))
    settings: Any = {"temperature": 0, "max_tokens": 200, "parallel_tool_calls": False, "extra_body": way.extra}
    agent: Any = Agent(
        model, output_type=Answer, model_settings=settings, capabilities=[PrepareTools(offered), PrepareOutputTools(answers)]
    )

    @agent.tool_plain(strict=True)  # type: ignore[misc]
    def weather(city: Literal["Rome", "Oslo"], days: Literal[1, 3]) -> str:
        """The weather of a city."""
        return way.called("weather", {"city": city, "days": days})

    @agent.tool_plain(strict=True)  # type: ignore[misc]
    def clock(city: Literal["Rome", "Oslo"]) -> str:
        """The time in a city."""
        return way.called("clock", {"city": city})

    if way.stream:
        import asyncio

        async def streamed() -> Any:
            async with agent.run_stream(QUESTION) as run:
                return await run.get_output()

        way.said(asyncio.run(streamed()).summary)
    else:
        way.said(agent.run_sync(QUESTION).output.summary)


def with_openai_agents(way: Way) -> None:
    """openai-agents: its chat model, one run for each turn, as its `tool_choice` is reset after a tool."""
    import asyncio

    from agents import Agent, FunctionTool, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    async def turns() -> None:
        client = AsyncOpenAI(base_url=way.url, api_key="none", max_retries=0)
        model = OpenAIChatCompletionsModel(model=way.model, openai_client=client)

        def tool(spec: dict[str, Any]) -> Any:
            async def invoke(_: Any, arguments: str) -> str:
                return way.called(spec["name"], arguments)

            return FunctionTool(spec["name"], spec["description"], spec["parameters"], invoke)

        told: Any = QUESTION
        for choice in ("weather", "required", "none"):
            settings = ModelSettings(temperature=0, tool_choice=choice, parallel_tool_calls=False,
                                     max_tokens=TEXT if choice == "none" else 200, extra_body=way.beside(choice))  # fmt: skip
            tools = [tool(spec["function"]) for spec in way.left]
            agent = Agent(name="helper", model=model, tools=tools, model_settings=settings,
                          tool_use_behavior="run_llm_again" if choice == "none" else "stop_on_first_tool")  # fmt: skip
            if way.stream:
                run: Any = Runner.run_streamed(agent, told)
                async for _ in run.stream_events():
                    pass
            else:
                run = await Runner.run(agent, told)
            told = run.to_input_list()
        way.said(run.final_output)
        await client.close()

    asyncio.run(turns())


def with_npm(way: Way, folder: Path) -> None:
    """The npm client, `openai`, in Node."""
    script = Path(__file__).with_name("agent_client.mjs")
    told = {"url": way.url, "model": way.model, "extra": way.extra, "stream": way.stream, "question": QUESTION,
            "tools": TOOLS, "turns": TURNS, "results": RESULTS, "most": TEXT,
            "last": way.beside("none")}  # fmt: skip
    ran = subprocess.run(
        ["node", str(script), str(folder.resolve()), json.dumps(told)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    for kind, *rest in json.loads(ran.stdout):
        if kind == "call":
            way.called(*rest)
        else:
            way.said(*rest)
