"""What /v1/responses repeats and keeps: bounded, counted as it lies in memory, and written beside the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from augury.serve.chat import ChatShape
from augury.serve.errors import ApiError
from augury.serve.parsers.choose import Parsers
from augury.serve.responses import echo, routes
from augury.serve.responses.answering import ResponseAnswers
from augury.serve.responses.request import ResponsesRequest
from augury.serve.responses.store import Store
from augury.serve.tooling import ToolUse

DEEP: Any = json.loads("[" * 250 + "]" * 250)
END = {"reason": "stop", "stop": None, "speculative_decoding": {}, "kv_transfer_params": None}


def asked(**body: Any) -> ResponsesRequest:
    return ResponsesRequest.model_validate({"input": "hi", **body})


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"a": [DEEP] * 4100}},  # a megabyte of it held 45
        {"metadata": {str(n): "x" for n in range(17)}},
        {"metadata": {"k" * 65: "x"}},
        {"metadata": {"k": "x" * 513}},
        {"tools": [{"type": "function", "name": "f", "parameters": {"a": [DEEP] * 263}}]},
        {"tools": [{"type": "function", "name": "f", "description": "x" * (1 << 20)}]},
        {"text": {"a": [0] * (1 << 16)}},
        {"reasoning": {"a": [0] * (1 << 16)}},
        {"tool_choice": {"a": [0] * (1 << 16)}},
        {"input": [{"role": "user", "content": "x", "more": [[]] * (1 << 17)}]},
    ],
)
def test_what_is_repeated_or_kept_has_a_limit(body: dict[str, Any]) -> None:
    [name] = body
    with pytest.raises(ApiError) as refused:
        asked(**body).check()
    assert refused.value.status == 400 and refused.value.param == name


def test_what_clients_send_is_within_it() -> None:
    turns = [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}] * (1 << 14)
    tools = [{"type": "function", "name": f"f{n}", "parameters": {"type": "object"}} for n in range(128)]
    given = {"metadata": {f"{n:064}": "x" * 512 for n in range(16)}, "tools": tools}
    assert asked(input=turns, instructions="x" * (4 << 20), **given).check() > 4 << 20


def test_a_conversation_that_grows_meets_the_same_limit() -> None:
    store = Store()
    before = [{"role": "user", "content": "x", "more": [0] * (echo.CONVERSATION - 10)}]
    store.keep("", "resp_1", b"{}", echo.written_items(before))
    body = asked(previous_response_id="resp_1", input=[{"role": "user", "content": "y", "more": [0] * 10}])
    with pytest.raises(ApiError, match="conversation"):
        routes._prepared(body, store)


def test_the_store_takes_the_memory_that_it_counts() -> None:
    store = Store(most=4 << 20)
    tracemalloc.start()
    try:
        for n in range(64):
            items = [{"role": "user", "content": "x", "more": [DEEP] * 100}]
            store.keep("", f"resp_{n}", echo.written({"id": f"resp_{n}"}), echo.written_items(items))
            del items
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 3 << 20 < store.held("") <= 4 << 20 and taken < 5 << 20
    assert json.loads(store.get("", "resp_63").items)[0]["more"] == [DEEP] * 100


class Client:
    """An engine's client that says one word."""

    scores = SimpleNamespace(take=lambda *_: None, give=lambda *_: None)

    async def submit(self, *_: Any) -> Any:
        return SimpleNamespace(queue=None)

    def abort(self, _: Any) -> None:
        """Nothing goes on."""

    async def updates(self, _: Any) -> AsyncIterator[Any]:
        yield 0, {"index": 0, "text": "word", "tokens": [1], "end": END}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", ["tools", "input"])
def test_a_long_echo_is_written_beside_the_event_loop(
    stream: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    dumps = echo._dumps

    def note(value: Any) -> str:
        threads.append(threading.current_thread())
        return dumps(value)

    async def work() -> None:
        long = "x" * 10_000
        tools = [{"type": "function", "name": "f", "description": long}]
        body = asked(stream=stream, **({"tools": tools} if where == "tools" else {"input": long}))
        store = Store()
        chat, told = routes._prepared(body, store)
        shape = ChatShape(chat, ToolUse.read(None, None, None, Parsers()))
        made = ResponseAnswers(chat, Client(), [[1]], {}, shape, "resp", "m", "none")  # type: ignore[arg-type]
        made.attend(told, lambda *given: store.keep("", *given), len)
        monkeypatch.setattr(echo, "_dumps", note)
        if stream:
            await made.begin()
            events = [event async for event in made.events()]
            assert isinstance(events[-1], bytes) and events[-1].startswith(b"event: response.completed\ndata: {")
            final = json.loads(events[-1].split(b"data: ")[1])["response"]
        else:
            final = json.loads((await made.whole()).body)
        assert final["output"][0]["content"][0]["text"] == "word"
        assert json.loads(store.get("", final["id"]).response) == final
        assert threads and threading.main_thread() not in threads

    asyncio.run(asyncio.wait_for(work(), 60))
