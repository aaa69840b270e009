"""Command lines of `vllm serve`, a model's own sampling defaults, and what the log says at the start."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served, served

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError
from augury.model.errors import ModelError
from augury.serve.defaults import Defaults
from augury.serve.openai import ChatRequest, CompletionRequest
from augury.serve.options import ServerOptions
from augury.serve.settings import settings_of
from augury.tools.run.command import serve
from augury.tools.run.serve_words import from_vllm

OWN = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.1, "do_sample": True, "eos_token_id": 1}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("m --served-model-name a b -sc {}", "m --served-model-name a --served-model-name b -sc {}"),
        ("m --api-key k1 k2", "m --api-key k1 --api-key k2"),
        ("m --served-model-name=a --port 1", "m --served-model-name=a --port 1"),
        ("--served-model-name a m", "--served-model-name a m"),  # the model comes last
        ("m --pipeline-parallel-size 1 --tensor-parallel-size 2 --port 1", "m --tensor-parallel-size 2 --port 1"),
        ("m --enable-lora --lora-modules a=b c=d -pp=1", "m --enable-lora --lora-modules a=b --lora-modules c=d"),
        ("m -tp 1 -pp=1 --lora-dtype=auto --swap-space 4", "m -tp 1"),
        ("m --disable-log-requests --no-trust-remote-code --async-scheduling --max-logprobs 20", "m"),
    ],
)
def test_words_of_vllm(given: str, taken: str) -> None:
    assert from_vllm(["serve", *given.split()]) == ["serve", *taken.split()]


@pytest.mark.parametrize("given", ["-pp 2", "--logprobs-mode raw_logits", "--fully-sharded-loras", "-pp"])
def test_words_that_ask_for_more_are_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"not supported|needs a value"):
        from_vllm(["serve", "m", *given.split()])


def test_drafters_cannot_be_swapped_in_from_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--swap-from .*nosuch: no such directory"):
        settings_of("m", {}, ServerOptions(swap_from=str(tmp_path / "nosuch")))
    assert settings_of("m", {}, ServerOptions(swap_from=str(tmp_path))).swap_from == str(tmp_path)


# --- defaults of the model -------------------------------------------------------------------------------------------


def written(place: Path, content: Any) -> Path:
    place.mkdir(exist_ok=True)
    (place / "generation_config.json").write_text(json.dumps(content))
    return place


def test_defaults_fill_what_a_request_leaves_open(tmp_path: Path) -> None:
    found = Defaults.read("auto", written(tmp_path, {**OWN, "max_new_tokens": 30}))
    asked = CompletionRequest(prompt="x", temperature=0.0, max_tokens=100)
    found.fill(asked)
    assert (asked.temperature, asked.top_p, asked.top_k, asked.repetition_penalty) == (0.0, 0.95, 20, 1.1)
    assert asked.max_tokens == 30 and asked.min_p is None
    short, chat = CompletionRequest(prompt="x"), ChatRequest(messages=[{"role": "user", "content": "x"}])  # type: ignore[list-item]
    found.fill(short)
    found.fill(chat)
    assert short.max_tokens == 16 and chat.max_tokens == 30 and chat.max_completion_tokens is None
    chat.max_completion_tokens = 500
    found.fill(chat)
    assert chat.max_completion_tokens == 30


def test_where_defaults_come_from(tmp_path: Path) -> None:
    model = written(tmp_path / "model", OWN)
    assert Defaults.read("vllm", model).values == {} == Defaults.read("auto", tmp_path / "none").values
    assert Defaults.read(str(written(tmp_path / "other", {"top_k": 7})), model).values == {"top_k": 7}
    for wrong in ({"temperature": -1}, {"max_new_tokens": "many"}, []):
        with pytest.raises(ModelError, match="--generation-config vllm"):
            Defaults.read("auto", written(tmp_path / "wrong", wrong))
    with pytest.raises(ModelError, match="cannot be used"):
        Defaults.read(str(tmp_path / "none"), model)


@pytest.fixture(scope="module")
def model(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("own") / "model"
    shutil.copytree(toy_model, place)
    return written(
        place, {**json.loads((toy_model / "generation_config.json").read_text()), **OWN, "eos_token_id": 256}
    )


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Served]:
    with served(model, "--served-model-name", "one", "two", "-tp", "1") as running:
        yield running


def test_the_server_draws_as_the_model_says(server: Served, model: Path) -> None:
    llm = LLM(model, device="cpu")

    def offline(**params: Any) -> str:
        wanted = SamplingParams(seed=3, max_tokens=40, ignore_eos=True, **params)
        return llm.generate("abc abc", wanted, use_tqdm=False)[0].outputs[0].text

    def asked(**body: Any) -> str:
        body = {"prompt": "abc abc", "seed": 3, "max_tokens": 40, "ignore_eos": True, "model": "two", **body}
        return str(server.http.post("/v1/completions", json=body).json()["choices"][0]["text"])

    own = {name: OWN[name] for name in ("temperature", "top_p", "top_k", "repetition_penalty")}
    assert asked() == offline(**own) != offline()
    assert asked(temperature=0) == offline(**{**own, "temperature": 0})


def test_the_log_says_what_runs_and_how_to_call_it(server: Served) -> None:
    assert [name["id"] for name in server.http.get("/v1/models").json()["data"]] == ["one", "two"]
    log = server.log
    assert "serving one, two on cpu, context 512 tokens; ngram drafts up to 4 tokens, rule coupled" in log
    assert "temperature 0.6" in log and "Ctrl-C" in log and f"listening at {server.url}" in log
    if shutil.which("curl"):
        line = next(line for line in log.splitlines() if " try: " in line).partition(" try: ")[2]
        told = subprocess.run(line.replace("curl", "curl -s", 1), shell=True, capture_output=True, text=True)
        assert json.loads(told.stdout)["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize("columns", [60, 80, 139, 140])
def test_help_cuts_no_option_off(columns: int) -> None:
    env = {**os.environ, "COLUMNS": str(columns)}
    done = subprocess.run([sys.executable, "-m", "augury", "serve", "--help"], capture_output=True, text=True, env=env)
    options = {f"--{name.replace('_', '-')}" for name in inspect.signature(serve).parameters if name != "model"}
    assert done.returncode == 0 and options <= set(re.findall(r"--[a-z-]+", done.stdout)) and "…" not in done.stdout
