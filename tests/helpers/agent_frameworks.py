"""The task of agent_clients.py by frameworks of agents, each in its own order; see run_clients.py."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from agent_clients import QUESTION, SCHEMAS, TEXT, Way

ID = re.compile(r"chatcmpl-tool-[0-9a-f]+|(?<=\")\\n(?=Calling tools)")


def with_smolagents(way: Way, question: str = QUESTION, templates: Any = None) -> None:
    """A smolagents ToolCallingAgent: it asks with `required` until the model calls final_answer."""
    from smolagents import OpenAIModel, ToolCallingAgent

    class Closed(OpenAIModel):  # type: ignore[misc]
        """Its schemas allow arguments that no tool of ours takes; its prompts have random ids, and a line feed more
        where the answer was streamed."""

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
        model_id=way.model,
        api_base=way.url,
        api_key="none",
        temperature=0,
        max_tokens=200,
        parallel_tool_calls=False,
        extra_body=way.extra,
    )
    agent: Any = ToolCallingAgent(
        tools=[*left.values(), done],
        model=model,
        stream_outputs=way.stream,
        max_steps=4,
        verbosity_level=0,
        prompt_templates=templates,
        step_callbacks=[offer],
    )
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
        model,
        output_type=Answer,
        model_settings=settings,
        capabilities=[PrepareTools(offered), PrepareOutputTools(answers)],
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
            settings = ModelSettings(
                temperature=0,
                tool_choice=choice,
                parallel_tool_calls=False,
                extra_body=way.beside(choice),
                max_tokens=TEXT if choice == "none" else 200,
            )
            tools = [tool(spec["function"]) for spec in way.left]
            agent = Agent(
                name="helper",
                model=model,
                tools=tools,
                model_settings=settings,
                tool_use_behavior="run_llm_again" if choice == "none" else "stop_on_first_tool",
            )
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
