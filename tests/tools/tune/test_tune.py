"""`augury tune` on the command line, with real engines and servers on toy models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cycling import QUESTION, cycling_model
from served import NGRAM, Served, served
from typer.testing import CliRunner

from augury.cli import app
from augury.config.errors import ConfigError
from augury.config.resolve import resolve
from augury.config.sampling import SamplingParams
from augury.tools.tune.choose import USE
from augury.tools.tune.prompts import conversations, token_ids


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cycling_model(tmp_path_factory.mktemp("cycling"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("".join(f"{QUESTION} {'abc'[i % 3]}{i}\n" for i in range(16)))
    return path


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["tune", *words])


def test_the_toy_that_repeats_itself(model: Path, prompts: Path, tmp_path: Path) -> None:
    """It says one line over and over: look-up drafts are accepted, and the tuner must find that."""
    out, page = tmp_path / "sc.json", tmp_path / "tune.html"
    words = ["--model", str(model), "--prompts", str(prompts), "--methods", "ngram", "--tokens", "1,4", "--concurrency"]
    words += ["1,2", "--max-tokens", "96", "--minutes", "0.15", "--out", str(out), "--report", str(page)]
    done = run(*words, "--json")
    found = json.loads(done.stdout)
    sure = found["choice"]["verdict"] == USE  # a busy machine may leave it in doubt
    assert (done.exit_code, out.exists(), bool(found["confirmed"])) == (0 if sure else 1, sure, sure)
    if sure:
        assert found["choice"]["speculative_config"] == json.loads(out.read_text())
        assert resolve(found["choice"]["speculative_config"]) is not None
        assert {entry["concurrency"] for entry in found["confirmed"]} == {1, 2}
    for load in found["loads"]:
        arms = {arm["name"]: arm for arm in load["arms"]}
        assert arms["plain"]["speed_up"] == 1 and arms["plain"]["draft_acceptance_rate"] == 0
        assert arms["ngram 2-4 K=4"]["draft_acceptance_rate"] > 0.6
        assert arms["ngram 2-4 K=4"]["mean_acceptance_length"] > arms["ngram 2-4 K=1"]["mean_acceptance_length"]
    text = page.read_text()
    assert "<svg" in text and "http" not in text.replace("http-equiv", "")


def test_a_drafter_that_cannot_be_loaded_is_left_out(model: Path, prompts: Path, tmp_path: Path) -> None:
    bad = json.dumps({"method": "eagle3", "model": str(tmp_path / "nothing"), "num_speculative_tokens": 2})
    words = ["--model", str(model), "--prompts", str(prompts), "--tokens", "2", "--concurrency", "1"]
    words += ["--max-tokens", "16"]
    done = run(*words, "--minutes", "0", "--methods", "ngram_gpu", "-sc", bad, "--json")
    found = json.loads(done.stdout)
    assert list(found["left_out"]) == ["eagle3 nothing"]
    alone = run(*words, "-sc", bad)
    assert alone.exit_code == 2 and "Traceback" not in alone.output


def test_engines_share_the_weights(model: Path) -> None:
    from augury.engine.llm import LLM

    options = {"device": "cpu", "max_model_len": 256, "max_num_seqs": 2}
    one = LLM(model, **options)
    two = LLM(model, weights_of=one, speculative_config=NGRAM, **options)
    greedy = SamplingParams(temperature=0, max_tokens=60)
    answers = [llm.generate(QUESTION, greedy, use_tqdm=False)[0].outputs[0].token_ids for llm in (one, two, one)]
    assert answers[0] == answers[1] == answers[2]
    assert two.engine.target is not one.engine.target and two.engine.target.cache is not one.engine.target.cache
    assert two.engine.target._embedding is one.engine.target._embedding  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="max_model_len differs"):
        LLM(model, weights_of=one, device="cpu", max_model_len=128)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Served]:
    with served(model) as running:
        yield running


def test_a_server_of_ours_by_its_requests(server: Served, prompts: Path) -> None:
    words = ["--prompts", str(prompts), "--concurrency", "2", "--max-tokens", "64", "--minutes", "0", "--json"]
    done = run(server.url, *words)
    assert done.exit_code in (0, 1), done.output
    found = json.loads(done.stdout)
    arms = {arm["name"]: arm for arm in found["loads"][0]["arms"]}
    assert set(arms) == {"plain", "server K=1", "server K=2", "server K=3", "server K=4"}
    assert arms["plain"]["draft_acceptance_rate"] == 0 and arms["server K=4"]["draft_acceptance_rate"] > 0.6
    assert arms["server K=1"]["mean_acceptance_length"] <= 2
    canary = json.loads(run(server.url, "--canary-url", server.url, *words).stdout)
    assert {arm["name"] for arm in canary["loads"][0]["arms"]} == {"plain", "canary"}
    refused = run(server.url, "--tokens", "9", *words)
    assert refused.exit_code == 2 and "with at most 4" in refused.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://127.0.0.1:9"], "is the server running"),
        (["http://127.0.0.1:9", "--methods", "ngram"], "a server has its own method"),
        (["--canary-url", "http://x"], "needs the URL"),
        (["--concurrency", "0"], "--concurrency 0"),
        (["--prompts", "absent.txt"], "neither a file"),
        (["--out", "absent/folder/sc.json"], "no directory"),
    ],
)
def test_command_lines_that_cannot_be(words: list[str], said: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and said in done.output and "Traceback" not in done.output


# --- found by a tester -----------------------------------------------------------------------------------------------


def test_prompts_in_the_forms_that_people_have(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"messages": [{"role": "user", "content": "hello"}]}\n' * 2)
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n")
    assert [body["messages"][-1]["content"] for body in conversations([str(chats), str(lines)])] == [
        "hello",
        "hello",
        "one",
        "two",
    ]
    binary = tmp_path / "x.bin"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(ConfigError, match=r"x\.bin"):
        conversations([str(binary)])


def test_a_prompt_without_room_is_named(model: Path) -> None:
    bodies = [{"messages": [{"role": "user", "content": text}]} for text in ("x", "long " * 400)]
    with pytest.raises(ConfigError, match=r"prompt 2 \('long long"):
        token_ids(bodies, str(model), 16)


def test_outputs_that_cannot_be_written_are_told_before_the_race(tmp_path: Path) -> None:
    done = run("--report", str(tmp_path), "--model", "nowhere")
    assert done.exit_code == 2 and "cannot be written" in done.output
