"""Clients people have: the openai package's finer points, and `llm` from the shell, each against a running server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict
from served import Served, served

CHAT: Any = [{"role": "user", "content": "say abc abc abc"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
]


class Verdict(BaseModel):
    """What a structured answer holds."""

    model_config = ConfigDict(extra="forbid")  # llm sends the schema as it is: more keys would be allowed

    verdict: Literal["yes", "no"]
    stars: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    with served(toy_model, "--served-model-name", "toy", "--api-key", "key", "--max-concurrent-requests", "2") as on:
        yield on


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def no_spaces(server: Served) -> dict[str, int]:
    """A bias against white space, which a random model would write for ever where JSON allows it."""
    body, key = {"prompt": " \t\r\n"}, {"Authorization": "Bearer key"}
    return {str(t): -100 for t in server.http.post("/tokenize", json=body, headers=key).json()["tokens"]}


# --- openai ----------------------------------------------------------------------------------------------------------


def test_parse_gives_an_object(client: openai.OpenAI, no_spaces: dict[str, int]) -> None:
    got = client.chat.completions.parse(
        model="toy", messages=CHAT, response_format=Verdict, max_tokens=200, extra_body={"logit_bias": no_spaces}
    )
    assert isinstance(got.choices[0].message.parsed, Verdict)


def test_a_parsed_stream_gives_an_object(client: openai.OpenAI, no_spaces: dict[str, int]) -> None:
    asked: Any = {"model": "toy", "messages": CHAT, "max_tokens": 200, "extra_body": {"logit_bias": no_spaces}}
    with client.chat.completions.stream(**asked, response_format=Verdict) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("content.delta") > 3 and kinds[-1] == "content.done"
    assert isinstance(final.choices[0].message.parsed, Verdict)


def test_an_answer_cut_short_is_not_parsed(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="toy", messages=CHAT, response_format=Verdict, max_tokens=2)


def test_async_streams_with_tools(server: Served) -> None:
    """Tool messages go to the template; where nothing is to be called, what comes back is text."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages: Any = [
        *CHAT,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]
    asked: Any = {"model": "toy", "messages": messages, "tools": TOOLS, "tool_choice": "none", "max_tokens": 12}

    async def ask() -> tuple[str, list[Any]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as made:
            stream = await made.chat.completions.create(**asked, stream=True, extra_body={"ignore_eos": True})
            chunks = [chunk async for chunk in stream]
        return "".join(c.choices[0].delta.content or "" for c in chunks), [c.choices[0].finish_reason for c in chunks]

    text, ends = asyncio.run(ask())
    assert text and ends[-1] == "length" and set(ends[:-1]) == {None}


def test_errors_are_the_clients_own_classes(client: openai.OpenAI, server: Served) -> None:
    def fails(kind: type[openai.APIStatusError], status: int, asked: openai.OpenAI = client, **body: Any) -> Any:
        with pytest.raises(kind) as caught:
            asked.completions.create(**{"model": "toy", "prompt": "x", **body})
        assert caught.value.status_code == status and caught.value.message
        return caught.value

    assert fails(openai.BadRequestError, 400, temperature=-1).param == "temperature"
    assert fails(openai.NotFoundError, 404, model="gpt-4o").code == "model_not_found"
    stranger = client.with_options(api_key="other")
    assert fails(openai.AuthenticationError, 401, stranger).code == "invalid_api_key"
    long: Any = {"model": "toy", "prompt": "x", "max_tokens": 500, "n": 8, "stream": True}
    streams = [client.completions.create(**long, extra_body={"ignore_eos": True}) for _ in range(2)]
    try:
        assert int(fails(openai.RateLimitError, 429).response.headers["retry-after"]) > 0
    finally:
        for stream in streams:
            stream.close()
    server.until_idle()


def test_a_dead_engine_is_an_error_in_the_stream_and_503_after(client: openai.OpenAI, server: Served) -> None:
    long: Any = {"model": "toy", "prompt": "x", "max_tokens": 500, "n": 8, "extra_body": {"ignore_eos": True}}
    stream = client.completions.create(**long, stream=True)
    next(stream)
    os.kill(server.engine_pid(), signal.SIGKILL)
    with pytest.raises(openai.APIError, match="the engine died"):
        list(stream)
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model="toy", prompt="x")
    assert caught.value.status_code == 503
    server.wait()
    patient = client.with_options(max_retries=2)
    assert patient.completions.create(model="toy", prompt="x", max_tokens=1).choices


# --- llm -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shell(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs `llm` with our server among its models."""
    home = tmp_path_factory.mktemp("llm")
    entry = {
        "model_id": "here",
        "model_name": "toy",
        "api_base": f"{server.url}/v1",
        "api_key_name": "augury",
        "supports_schema": True,
        "supports_tools": True,
    }
    (home / "extra-openai-models.yaml").write_text(json.dumps([entry]))  # JSON is YAML
    (home / "keys.json").write_text(json.dumps({"augury": "key"}))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LLM_USER_PATH": str(home), "LLM_LOAD_PLUGINS": ""}
        command = [sys.executable, "-m", "llm", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, cwd=home)

    return run


def test_llm_streams_what_the_server_says(shell: Any, client: openai.OpenAI) -> None:
    options = ("-o", "temperature", "0", "-o", "max_tokens", "20")
    told = shell("prompt", "-m", "here", "abc abc", *options)
    assert told.returncode == 0, told.stderr
    question: Any = [{"role": "user", "content": "abc abc"}]
    said = client.chat.completions.create(model="toy", messages=question, temperature=0, max_tokens=20)
    assert told.stdout.rstrip("\n") == (said.choices[0].message.content or "").rstrip("\n")
    logged = json.loads(shell("logs", "-n", "1", "--json").stdout)[0]
    assert logged["input_tokens"] == said.usage.prompt_tokens and logged["output_tokens"] == 20  # the usage chunk


def test_llm_gets_a_structured_answer(shell: Any, no_spaces: dict[str, int]) -> None:
    schema = json.dumps(Verdict.model_json_schema())
    words = ("prompt", "-m", "here", "well?", "--schema", schema, "-o", "max_tokens", "200")
    told = shell(*words, "-o", "logit_bias", json.dumps(no_spaces))
    assert told.returncode == 0, told.stderr
    Verdict.model_validate_json(told.stdout)


def test_llm_shows_our_reason(shell: Any) -> None:
    told = shell("prompt", "-m", "here", "x" * 600)
    assert told.returncode == 1 and "max_model_len is 512" in told.stderr
