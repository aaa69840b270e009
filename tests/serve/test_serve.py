"""The server on the toy model, asked by the real OpenAI client; what it says must be what the engine says offline."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from serve_cases import CHAT, PROMPTS, spec_metrics, texts
from served import Served

from augury import LLM, SamplingParams


def test_greedy_completions_of_many_prompts(client: openai.OpenAI, llm: LLM) -> None:
    got = client.completions.create(model="toy", prompt=PROMPTS, max_tokens=30, temperature=0)
    assert [c.text for c in got.choices] == texts(llm, PROMPTS, max_tokens=30, temperature=0)
    assert [c.index for c in got.choices] == [0, 1, 2, 3]


def test_seeded_answers_whatever_form_the_prompt_has(client: openai.OpenAI, llm: LLM) -> None:
    ids = [llm.get_tokenizer().encode(p) for p in PROMPTS]
    wanted = texts(llm, PROMPTS, max_tokens=20, temperature=1, seed=11, n=2)
    for prompt in (PROMPTS, ids):
        got = client.completions.create(model="toy", prompt=prompt, max_tokens=20, temperature=1, seed=11, n=2)
        assert [c.text for c in got.choices] == wanted
    one = client.completions.create(model="org/toy", prompt=ids[2], max_tokens=20, temperature=1, seed=11)
    assert one.choices[0].text == wanted[4]
    assert len(set(wanted)) > 4


def test_sampling_fields_of_vllm(client: openai.OpenAI, llm: LLM) -> None:
    extra = {
        "top_k": 20,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "min_tokens": 5,
        "bad_words": ["s"],
        "ignore_eos": True,
        "stop_token_ids": [82],
        "skip_special_tokens": False,
    }
    params = {"max_tokens": 25, "temperature": 0.9, "seed": 3, "logit_bias": {"65": 2.0}, "presence_penalty": 0.3}
    got = client.completions.create(model="toy", prompt=PROMPTS[0], extra_body=extra, **params)  # type: ignore[call-overload]
    assert [got.choices[0].text] == texts(llm, PROMPTS[:1], **params, **extra)


def test_chat_equals_offline_chat(client: openai.OpenAI, llm: LLM) -> None:
    wanted = llm.chat(CHAT, SamplingParams(max_tokens=24, temperature=0.8, seed=5, n=3), use_tqdm=False)[0]
    got = client.chat.completions.create(
        model="toy", messages=CHAT, max_completion_tokens=24, temperature=0.8, seed=5, n=3
    )
    assert [c.message.content for c in got.choices] == [a.text for a in wanted.outputs]
    assert [c.finish_reason for c in got.choices] == [a.finish_reason for a in wanted.outputs]
    assert got.usage is not None and got.usage.prompt_tokens == len(wanted.prompt_token_ids)
    assert got.usage.completion_tokens == sum(len(a.token_ids) for a in wanted.outputs)
    assert got.choices[0].message.role == "assistant"


def test_chat_without_a_limit_runs_to_the_context(client: openai.OpenAI) -> None:
    got = client.chat.completions.create(model="toy", messages=CHAT, temperature=0, extra_body={"ignore_eos": True})
    assert got.usage is not None and got.usage.total_tokens == 512 and got.choices[0].finish_reason == "length"


def test_parts_and_continued_messages(server: Served, llm: LLM) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]}]
    body: dict[str, Any] = {"messages": parts}
    assert server.http.post("/tokenize", json=body).json()["tokens"] == llm.tokenizer.chat(
        [{"role": "user", "content": "abc"}], add_generation_prompt=True
    )
    begun = [*CHAT, {"role": "assistant", "content": "so "}]
    asked = {"messages": begun, "continue_final_message": True, "return_token_ids": True, "max_tokens": 1}
    got = server.http.post("/v1/chat/completions", json=asked).json()
    wanted = llm.tokenizer.chat(begun, add_generation_prompt=False, continue_final_message=True)
    assert got["prompt_token_ids"] == wanted


def test_a_conversation_with_tools_passes_through(client: openai.OpenAI) -> None:
    function = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages: Any = [
        *CHAT,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sun"},
    ]
    tools: Any = [{"type": "function", "function": function}]
    got = client.chat.completions.create(model="toy", messages=messages, tools=tools, tool_choice="none", max_tokens=4)
    assert isinstance(got.choices[0].message.content, str) and not got.choices[0].message.tool_calls
    with pytest.raises(openai.BadRequestError, match="--enable-auto-tool-choice"):
        client.chat.completions.create(model="toy", messages=messages, tools=tools)


@pytest.mark.parametrize("usage", [True, False])
def test_a_stream_says_the_same(client: openai.OpenAI, usage: bool) -> None:
    asked: dict[str, Any] = {
        "model": "toy",
        "prompt": PROMPTS[:2],
        "max_tokens": 40,
        "temperature": 0.7,
        "seed": 9,
        "n": 2,
    }
    whole = client.completions.create(**asked)
    said, ends = [""] * 4, [None] * 4
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": usage}))
    for chunk in chunks:
        for choice in chunk.choices:
            said[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert said == [c.text for c in whole.choices]
    assert ends == [c.finish_reason for c in whole.choices]
    assert (chunks[-1].usage == whole.usage and not chunks[-1].choices) if usage else chunks[-1].choices
    assert len(chunks) > 20


def test_a_stream_gives_every_token_id(client: openai.OpenAI) -> None:
    """Even of half a character, whose text comes later."""
    asked: Any = {"model": "toy", "prompt": "é", "max_tokens": 120, "temperature": 1, "seed": 5}
    extra = {"return_token_ids": True, "ignore_eos": True}
    whole = client.completions.create(**asked, extra_body=extra)
    chunks = list(client.completions.create(**asked, extra_body=extra, stream=True))
    ids = [token for chunk in chunks for token in chunk.choices[0].token_ids]  # type: ignore[attr-defined]
    assert ids == whole.choices[0].token_ids and len(ids) == 120  # type: ignore[attr-defined]
    assert any(not chunk.choices[0].text for chunk in chunks[:-1])


def test_a_chat_stream_has_role_text_usage_and_figures(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "toy", "messages": CHAT, "max_tokens": 60, "temperature": 0}
    whole = client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
    stream = client.chat.completions.create(
        **asked, extra_body={"ignore_eos": True}, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert spec_metrics(chunks[-1]) == spec_metrics(whole)


def test_a_stop_string_never_shows_even_across_tokens(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "toy",
        "prompt": "q",
        "max_tokens": 60,
        "temperature": 0.9,
        "seed": 4,
        "extra_body": {"ignore_eos": True, "allowed_token_ids": list(range(65, 91))},
    }
    text = client.completions.create(**asked).choices[0].text
    assert len(text) >= 50  # a token is a letter here, so any three of them lie in three tokens
    stop = text[20:23]
    wanted = text[: text.index(stop)]
    chunks = [c.choices[0] for c in client.completions.create(**asked, stop=[stop, "never"], stream=True)]
    assert "".join(c.text for c in chunks) == wanted
    assert chunks[-1].finish_reason == "stop" and chunks[-1].model_extra["stop_reason"] == stop  # type: ignore[index]


def test_many_clients_at_once(server: Served, llm: LLM) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=60) as many:

            async def one(i: int) -> str:
                stream = await many.completions.create(
                    model="toy", prompt=PROMPTS[i % 4], max_tokens=30, temperature=1, seed=i, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*(one(i) for i in range(10)))

    got = asyncio.run(ask())
    assert got == [texts(llm, [PROMPTS[i % 4]], max_tokens=30, temperature=1, seed=i)[0] for i in range(10)]


def test_structured_answers(client: openai.OpenAI) -> None:
    got = client.completions.create(model="toy", prompt="q", max_tokens=20, extra_body={"guided_choice": ["yes", "no"]})
    assert got.choices[0].text in ("yes", "no")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    shape: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    said = client.chat.completions.create(model="toy", messages=CHAT, max_tokens=100, response_format=shape)
    if said.choices[0].finish_reason == "stop":
        assert json.loads(said.choices[0].message.content or "")["a"] in (1, 2)
    with pytest.raises(openai.BadRequestError, match="regex"):
        client.completions.create(model="toy", prompt="q", extra_body={"structured_outputs": {"regex": "(("}})


def test_small_routes(server: Served, client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list().data] == ["toy", "org/toy"]
    assert client.models.retrieve("org/toy").id == "org/toy"
    assert server.http.get("/v1/models/other").json()["error"]["code"] == "model_not_found"
    for path in ("/", "/health"):
        head = server.http.head(path)
        assert head.status_code == 200 and head.content == b""
    assert server.http.get("/version").json()["version"]
    assert server.http.get("/ping").status_code == server.http.post("/ping").status_code == 200
    schema = server.http.get("/openapi.json").json()
    assert {"/v1/completions", "/v1/chat/completions", "/tokenize", "/health"} <= set(schema["paths"])
    assert server.http.get("/docs").status_code == 404 == server.http.get("/nowhere").status_code
    assert server.http.get("/nowhere").json()["error"]["type"] == "not_found_error"
    wrong = server.http.get("/v1/completions")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST" and wrong.json()["error"]["message"]
    told = server.http.post("/tokenize", json={"prompt": "ab", "return_token_strs": True}).json()
    assert (told["count"], told["max_model_len"], told["token_strs"]) == (2, 512, ["a", "b"])
    assert server.http.post("/detokenize", json={"tokens": [1 << 40]}).json()["error"]["param"] == "tokens"


def test_the_parameter_n_is_counted_once_a_request(server: Served) -> None:
    server.until_idle()
    before = server.metrics()
    body = {"prompt": "x", "max_tokens": 3, "n": 4, "temperature": 1}
    assert server.http.post("/v1/completions", json=body).status_code == 200
    after = server.metrics()
    grown = {name: after[name] - before[name] for name in after if name.startswith("vllm:request_")}
    assert (grown["vllm:request_params_n_count"], grown["vllm:request_params_n_sum"]) == (1, 4)
    assert grown["vllm:request_generation_tokens_count"] == 4
    with server.http.stream("POST", "/v1/completions", json={**body, "max_tokens": 300, "stream": True}) as got:
        next(got.iter_lines())  # and gone
    server.until_idle()
    later = server.metrics()
    assert later["vllm:request_params_n_count"] - after["vllm:request_params_n_count"] == 1
    assert later["vllm:request_params_n_sum"] - after["vllm:request_params_n_sum"] == 4


def test_live_figures(server: Served) -> None:
    live = server.until_idle()
    assert live["method"] == "ngram" and live["num_spec_tokens"] == 4 and live["model"] == "toy"
    assert live["speculative_config"]["prompt_lookup_max"] == 3
    assert 1 <= len(live["buckets"]) <= 300
    ats = [bucket["at"] for bucket in live["buckets"]]
    assert ats == list(range(ats[0], ats[0] + len(ats)))
    assert live["per_position"]["accepted"][0] <= live["per_position"]["drafted"][0]


def test_the_server_itself_needs_no_torch(server: Served) -> None:
    assert "libtorch" not in Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtorch" in Path(f"/proc/{server.engine_pid()}/maps").read_text()


def test_nothing_above_left_a_traceback(server: Served) -> None:
    assert "Traceback" not in server.log and " ERROR " not in server.log
