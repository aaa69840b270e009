"""What one request may do to the others' engine: a grammar that takes long, a step that fails."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Served, served

from augury.config.sampling import SamplingParams
from augury.serve import compiling
from augury.serve.compiling import Compiler

DRAFTER = '''
class Trap:
    """Drafts nothing, and fails on a text that holds five bangs."""

    def __init__(self, vllm_config):
        pass

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        for fresh, length, row in zip(sampled_token_ids, num_tokens_no_spec, token_ids_cpu):
            if "!!!!!" in "".join(map(chr, row[:length] + 33)):
                raise RuntimeError("five bangs")
        return [[] for _ in sampled_token_ids]
'''
TRAP = {"method": "custom_class", "model": "trap_drafter.Trap", "num_speculative_tokens": 2}
QUIET = {"ignore_eos": True, "temperature": 0.0, "allowed_token_ids": [65, 66, 67]}


@pytest.fixture(scope="module")
def server(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("drafter")
    (place / "trap_drafter.py").write_text(DRAFTER)
    with served(toy_model, spec=TRAP, PYTHONPATH=str(place)) as running:
        yield running


def ask(server: Served, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json={"max_tokens": 30, **QUIET, **body}, timeout=60)


# --- grammars --------------------------------------------------------------------------------------------------------


def one_of_many(count: int, values: int) -> dict[str, Any]:
    """A schema whose compilation takes a second or so."""
    parts = [{f"k{i}": {"enum": [f"v{i}{j}" for j in range(values)]}} for i in range(count)]
    closed = {"type": "object", "additionalProperties": False}
    return {"anyOf": [{**closed, "properties": part, "required": list(part)} for part in parts]}


def test_a_heavy_grammar_stalls_nobody(server: Served) -> None:
    """A stream goes on while it is compiled, and requests that come later are answered first."""
    heavy: dict[str, Any] = {}

    def compile_it() -> None:
        begun = time.monotonic()
        wanted = {"json": one_of_many(900, 60)}
        heavy["answer"] = ask(server, prompt="x", structured_outputs=wanted, allowed_token_ids=None)
        heavy["seconds"] = time.monotonic() - begun

    body = {"prompt": "s", "max_tokens": 500, "stream": True, **QUIET}
    worker = threading.Thread(target=compile_it)
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as got:
        lines = got.iter_lines()
        next(lines)
        worker.start()
        times = [time.monotonic() for line in lines if line.startswith("data")]
    quick = []
    while worker.is_alive():
        begun = time.monotonic()
        assert ask(server, prompt="x", max_tokens=2).status_code == 200
        quick.append(time.monotonic() - begun)
    worker.join()
    assert heavy["answer"].status_code == 200, heavy["answer"].text
    assert heavy["answer"].json()["choices"][0]["text"].lstrip().startswith("{")
    waits = [b - a for a, b in itertools.pairwise(times)] + quick
    assert heavy["seconds"] > 0.5 and max(waits) < heavy["seconds"] / 2, (heavy["seconds"], max(waits))


def test_thousands_of_choices(server: Served) -> None:
    words = [f"word ({i}) {i * 7919 % 10007}.*" for i in range(5000)]
    wanted = {"choice": words}
    got = ask(server, prompt="x", structured_outputs=wanted, allowed_token_ids=None, max_tokens=40).json()
    assert got["choices"][0]["text"] in words and got["choices"][0]["finish_reason"] == "stop"


def test_a_grammar_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "SECONDS", 0.3)
    gate, first, other = threading.Event(), SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)
    compiler = Compiler(lambda params: gate.wait(10) and None if params is first else None)
    compiler.submit(1, other)
    assert outcomes(compiler, 1) == {1: None}
    for job in (2, 3, 4):  # two at once; the third never begins
        compiler.submit(job, first)
    late = outcomes(compiler, 3)
    assert "within 0.3 seconds" in late[2] and "within 0.3 seconds" in late[3] and "others' grammars" in late[4]
    assert not compiler.busy
    compiler.submit(5, other)
    compiler.submit(6, other)
    compiler.forget(5)
    gate.set()  # the abandoned end, and make room
    assert outcomes(compiler, 1) == {6: None}


def outcomes(compiler: Compiler, count: int) -> dict[int, Any]:
    found: dict[int, Any] = {}
    limit = time.monotonic() + 10
    while len(found) < count:
        assert time.monotonic() < limit, found
        found |= {one.job: one.error and str(one.error) for one in compiler.finished()}
        time.sleep(0.005)
    return found


# --- a step that fails -----------------------------------------------------------------------------------------------


def test_a_request_that_breaks_a_step_fails_alone(server: Served) -> None:
    engine, before = server.engine_pid(), ask(server, prompt="calm").json()["choices"][0]["text"]
    broken = ask(server, prompt="!!!!!")
    assert broken.status_code == 500, broken.text
    assert broken.json()["error"]["code"] == "engine_failed" and "five bangs" in broken.json()["error"]["message"]
    with httpx.stream("POST", f"{server.url}/v1/completions", json={"prompt": "!!!!!", "stream": True}) as got:
        events = [line.removeprefix("data: ") for line in got.iter_lines() if line]
    assert got.status_code == 200 and "five bangs" in json.loads(events[0])["error"]["message"]
    assert events[1:] == ["[DONE]"]
    assert ask(server, prompt="calm").json()["choices"][0]["text"] == before
    assert server.engine_pid() == engine and server.http.get("/health").status_code == 200
    assert "five bangs" in server.log and "Traceback" in server.log  # the operator learns where


def test_whoever_was_in_the_step_is_told_and_the_rest_go_on(server: Served) -> None:
    engine = server.engine_pid()
    prompts = ["!!!!!" if i % 8 == 7 else f"calm {i}" for i in range(32)]
    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(lambda p: ask(server, prompt=p), prompts))
    codes = [answer.status_code for answer in got]
    assert all(code == 500 for code, prompt in zip(codes, prompts, strict=True) if prompt == "!!!!!")
    assert set(codes) <= {200, 500}
    server.until_idle()
    assert server.metrics()["vllm:kv_cache_usage_perc"] == 0 and server.engine_pid() == engine
    ended = server.metrics()['vllm:request_success_total{"finished_reason": "error"}']
    assert ended == codes.count(500) + 2  # and the two of the test before
