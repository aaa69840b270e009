"""Adapters of a server: models of their own to clients, loaded and unloaded while it runs, counted apart."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lora_files import merged, write_adapter
from prometheus_client import CollectorRegistry
from queued import make_request, make_scheduler, run_pass
from served import Served, served

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError
from augury.config.files import cache_dir
from augury.config.lora import read_modules
from augury.engine.loras import LoadedLora
from augury.observe.prometheus_adapters import LoraInfoProm
from augury.observe.running import running
from augury.serve.engine_facts import adapters_in_use
from augury.serve.openai import CompletionRequest

PROMPT = "abcabcabcabc"
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


@pytest.fixture(scope="module")
def home(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("adapters")
    for number, name in enumerate("abc"):
        write_adapter(toy_model, found / name, number + 1)
    return found


@pytest.fixture(scope="module")
def expected(toy_model: Path, home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each says, merged into a model of its own."""
    room = tmp_path_factory.mktemp("merged")
    models = {"toy": toy_model} | {name: merged(toy_model, home / name, room / name) for name in "abc"}
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    return {
        name: LLM(str(model), dtype="float32").generate(PROMPT, params, use_tqdm=False)[0].outputs[0].text
        for name, model in models.items()
    }


@pytest.fixture(scope="module")
def server(toy_model: Path, home: Path) -> Iterator[Served]:
    flags = (
        "--dtype",
        "float32",
        "--enable-lora",
        "--max-loras",
        "2",
        "--max-cpu-loras",
        "3",
        "--lora-from",
        str(home),
        "--kv-offloading-size",
        "0.01",
    )
    flags += ("--served-model-name", "toy", "--lora-modules", f"a={home / 'a'}")
    with served(toy_model, *flags, spec=NGRAM) as running:
        yield running


def said(server: Served, model: str, **more: Any) -> Any:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True, **more}
    return server.http.post("/v1/completions", json=body)


def load(server: Served, name: str, path: str, **more: Any) -> Any:
    return server.http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path, **more})


def unload(server: Served, name: str) -> Any:
    return server.http.post("/v1/unload_lora_adapter", json={"lora_name": name})


def test_who_runs_here_is_told(server: Served) -> None:
    """To gateways, by vLLM's gauge, and to `augury ps`; tokens that the device did not have are looked up elsewhere."""
    said(server, "a")
    server.until_idle()
    found = server.metrics()
    names = {"max_lora": "2", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    assert found["vllm:lora_requests_info" + json.dumps(names, sort_keys=True)] > 1.7e9
    assert found["vllm:external_prefix_cache_queries_total"] > 0
    [record] = [one for one in running(cache_dir() / "running") if one["pid"] == server.process.pid]
    assert record["url"] == server.url and record["models"] == ["toy"] and record["method"] == "ngram"


def test_adapters_in_use() -> None:
    scheduler = make_scheduler(slots=1)
    for number, name in enumerate(("b", None, "a", "b")):
        request = make_request(number, [1, 2, 3])
        request.lora = None if name is None else LoadedLora(name, name, number)
        scheduler.add(request)
    assert adapters_in_use(scheduler) == ([], ["a", "b"])
    run_pass(scheduler)
    assert adapters_in_use(scheduler) == (["b"], ["a", "b"])
    registry = CollectorRegistry()
    told = LoraInfoProm(registry, 4)
    for running_now, waiting in ((["b"], ["a", "b"]), (["a"], [])):
        told.hear(running_now, waiting)
    [family] = registry.collect()
    assert [sample.labels for sample in family.samples] == [
        {"max_lora": "4", "waiting_lora_adapters": "", "running_lora_adapters": "a"}
    ]


def test_an_adapter_is_a_model(server: Served, home: Path, expected: dict[str, str]) -> None:
    listed = {one["id"]: one for one in server.http.get("/v1/models").json()["data"]}
    assert listed["a"]["parent"] == "toy" and listed["a"]["root"] == str(home / "a") and listed["toy"]["parent"] is None
    for name in ("toy", "a"):
        for spec in ({"enabled": False}, {"num_speculative_tokens": 4}):
            got = said(server, name, speculative=spec).json()
            assert got["model"] == name and got["choices"][0]["text"] == expected[name]
    body = {"model": "a", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    assert server.http.post("/v1/chat/completions", json=body).json()["model"] == "a"
    assert server.http.post("/v1/messages", json=body).json()["model"] == "a"
    assert said(server, "b").status_code == 404


def test_loaded_and_unloaded_while_it_runs(server: Served, home: Path, expected: dict[str, str]) -> None:
    assert load(server, "b", "b").status_code == 200
    assert said(server, "b").json()["choices"][0]["text"] == expected["b"]
    assert load(server, "b", "b").status_code == 400 and load(server, "toy", "b").status_code == 400
    assert load(server, "b", str(home / "c"), load_inplace=True).status_code == 200
    assert said(server, "b").json()["choices"][0]["text"] == expected["c"]
    assert unload(server, "b").status_code == 200 and said(server, "b").status_code == 404
    assert unload(server, "b").status_code == 404
    assert said(server, "a").json()["choices"][0]["text"] == expected["a"]


def test_orders_that_come_together_take_turns(server: Served) -> None:
    with ThreadPoolExecutor(4) as pool:
        loads = list(pool.map(lambda _: load(server, "b", "b").status_code, range(4)))
        unloads = list(pool.map(lambda _: unload(server, "b").status_code, range(4)))
    assert sorted(loads) == [200, 400, 400, 400] and sorted(unloads) == [200, 404, 404, 404]


def test_an_adapter_that_goes_while_its_request_comes() -> None:
    request = CompletionRequest(prompt="x", model="b")
    request.came_from("", lora="b")
    told = request.refusal("lora 'b' is not loaded; loaded: a.")
    assert (told.status, told.code, told.param) == (404, "model_not_found", "model")


def test_only_what_lies_under_the_directory_is_loaded(server: Served, home: Path, toy_model: Path) -> None:
    for path in ("..", str(toy_model), "nowhere", "a\0b"):
        got = load(server, "x", path)
        assert got.status_code == 400 and got.json()["error"]["param"] == "lora_path"
    (home / "broken").mkdir(exist_ok=True)
    got = load(server, "x", "broken")
    assert got.status_code == 400 and "adapter_config.json" in got.json()["error"]["message"]


def test_no_path_of_the_machine_is_told_and_names_can_be_shown(server: Served, home: Path) -> None:
    (home / "empty").mkdir(exist_ok=True)
    for path in ("empty", "nowhere"):
        assert str(home.resolve()) not in load(server, "x", path).text
    for name in ("a\x1b[31m", "a\nb", "a\u202eb"):
        got = load(server, name, "b")
        assert got.status_code == 400 and got.json()["error"]["param"] == "lora_name", got.text
    assert load(server, "relative", "b").status_code == 200
    models = server.http.get("/v1/models").json()["data"]
    assert next(one["root"] for one in models if one["id"] == "relative") == "b"
    assert unload(server, "relative").status_code == 200


def test_acceptance_is_told_by_adapter(server: Served) -> None:
    before = server.metrics().get('augury:spec_decode_num_draft_tokens_by_adapter_total{"lora_name": "a"}', 0.0)
    assert said(server, "a", max_tokens=100).status_code == said(server, "toy", max_tokens=100).status_code == 200
    server.until_idle()
    found = server.metrics()
    drafted = found['augury:spec_decode_num_draft_tokens_by_adapter_total{"lora_name": "a"}']
    accepted = found['augury:spec_decode_num_accepted_tokens_by_adapter_total{"lora_name": "a"}']
    assert drafted > before and 0 <= accepted <= drafted < found["vllm:spec_decode_num_draft_tokens_total"]
    assert not any('"toy"' in name for name in found if "by_adapter" in name)


def test_a_restarted_engine_has_them_again(server: Served, expected: dict[str, str]) -> None:
    assert load(server, "c", "c").status_code == 200
    dead = server.engine_pid()
    os.kill(dead, signal.SIGKILL)
    until = time.monotonic() + 120
    while dead in server.children() or not server.children():
        assert time.monotonic() < until
        time.sleep(0.02)
    server.wait()
    for name in ("a", "c", "toy"):
        assert said(server, name).json()["choices"][0]["text"] == expected[name]
    assert unload(server, "c").status_code == 200


def test_modules_as_vllm_writes_them() -> None:
    assert read_modules(["a=/x", '{"name": "b", "path": "/y", "base_model_name": "m"}']) == {"a": "/x", "b": "/y"}
    for wrong in (["a"], ["=x"], ["a="], ["{"], ['{"name": "b"}'], ["a=1", "a=2"]):
        with pytest.raises(ConfigError, match="--lora-modules"):
            read_modules(wrong)
