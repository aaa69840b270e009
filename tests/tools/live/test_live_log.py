"""What a server's log tells, and a diagnosis that leans on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import free_port
from staged import staged
from typer.testing import CliRunner
from vllm_text import recorded

from augury.cli import app
from augury.config.errors import ConfigError
from augury.config.versions import version
from augury.tools.live.diagnose.server_log import read_log

START = """(APIServer pid=1) INFO 05-21 21:03:10 [api_server.py:1272] vLLM API server version 0.21.1rc0.dev8+g1234
(EngineCore pid=9) INFO 05-21 21:03:20 [core.py:109] Initializing a V1 LLM engine (v0.21.1) with config: model='m', \
speculative_config=SpeculativeConfig(method='eagle3', model='h', num_spec_tokens=3), enforce_eager=False, \
compilation_config={'cudagraph_capture_sizes': [1, 2, 4, 8, 16], 'mode': 3}
(APIServer pid=1) INFO 05-21 21:03:21 [vllm.py:754] Asynchronous scheduling is disabled.
(EngineCore pid=9) WARNING Model Runner V2 does not yet support suffix; using the V1 model runner instead
(EngineCore pid=9) INFO 05-21 21:04:00 Graph capturing finished in 12 secs, took 0.61 GiB
"""


def spec_line(accepted: int, drafted: int) -> str:
    return (
        f"INFO 05-21 21:05:00 SpecDecoding metrics: Mean acceptance length: {1 + 3 * accepted / drafted:.2f}, "
        f"Accepted throughput: 1.00 tokens/s, Drafted throughput: 1.00 tokens/s, Accepted: {accepted} tokens, "
        f"Drafted: {drafted} tokens, Per-position acceptance rate: 0.900, 0.800, 0.700, "
        f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%\n"
    )


def load_line(waiting: int, usage: float) -> str:
    return (
        "INFO Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 1.0 tokens/s, "
        f"Running: 4 reqs, Waiting: {waiting} reqs, GPU KV cache usage: {usage:.1f}%, Prefix cache hit rate: 1.0%\n"
    )


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["diagnose", *words], prog_name="augury")


def log_of(tmp_path: Path, *parts: str) -> Path:
    file = tmp_path / "server.log"
    file.write_text("".join(parts))
    return file


def test_start_up_lines_tell_how_it_runs(tmp_path: Path) -> None:
    found = read_log(log_of(tmp_path, START)).facts()
    assert found == {
        "method": "eagle3",
        "k": 3,
        "speculates": True,
        "logged_async": "off",
        "logged_eager": False,
        "logged_runner": "old",
        "graph_limit": 16,
        "version": version("0.21.1"),
        "refused_in_log": False,
    }


@pytest.mark.parametrize(
    ("line", "fact", "value"),
    [
        ("INFO Cudagraph is disabled under eager mode\n", "logged_eager", True),
        ("INFO Asynchronous scheduling is enabled.\n", "logged_async", "on"),
        (
            "WARNING Async scheduling not supported with ngram-based speculative decoding and will be disabled.\n",
            "logged_async",
            "off",
        ),
        ("INFO with config: model='m', speculative_config=None, tokenizer='m'\n", "speculates", False),
        (
            "ERROR ValueError: speculative_config: unknown method 'eagle9'\n",
            "logged_refused",
            "ValueError: speculative_config: unknown method 'eagle9'",
        ),
        ("INFO serving m on cpu, context 1024 tokens; ngram drafts up to 4 tokens, rule coupled (x)\n", "k", 4),
    ],
)
def test_single_lines(tmp_path: Path, line: str, fact: str, value: Any) -> None:
    assert read_log(log_of(tmp_path, line)).facts()[fact] == value


def test_what_users_say_is_not_what_the_server_says(tmp_path: Path) -> None:
    line = "INFO Received request cmpl-1: prompt: 'ValueError: draft. Asynchronous scheduling is enabled'\n"
    assert read_log(log_of(tmp_path, line)).facts() == {"refused_in_log": False}


def test_trends_come_from_the_lines_of_the_last_run(tmp_path: Path) -> None:
    falling = [spec_line(2700 - 200 * n, 3000) + load_line(2 * n, 10.0 + 8 * n) for n in range(9)]
    found = read_log(log_of(tmp_path, START, *falling)).facts()
    assert found["acceptance_falling"] and found["queue_growing"] and found["kv_usage_rising"]
    steady = [spec_line(2400 + n % 2, 3000) + load_line(0, 20.0) for n in range(9)]
    log = read_log(log_of(tmp_path, START, *falling, START, *steady))
    found = log.facts()
    assert log.starts == 2 and not found["acceptance_falling"] and not found["queue_growing"]


@pytest.mark.parametrize(
    ("lines", "falls"),
    [
        ([(830, 1000), (500, 1000), (170, 1000)], True),
        ([(830, 1000), (170, 1000)], True),
        ([(830, 1000), (820, 1000), (825, 1000)], False),
        ([(8, 10), (5, 10), (3, 10)], None),  # so few tokens fall by chance
        ([(830, 1000)], None),
    ],
)
def test_a_short_log_is_judged_by_its_counts(tmp_path: Path, lines: list[tuple[int, int]], falls: bool | None) -> None:
    log = read_log(log_of(tmp_path, START, *(spec_line(*line) for line in lines)))
    assert log.facts().get("acceptance_falling") is falls
    assert [f"only {len(lines)} line" in note for note in log.notes()] == ([True] if falls is None else [])


def test_a_diagnosis_says_what_a_log_shows_or_is_too_short_to_show(tmp_path: Path) -> None:
    falling = str(log_of(tmp_path, START, *(spec_line(n, 1000) for n in (830, 500, 170))))
    with staged(*recorded("healthy-eagle3")) as stage:
        result = run(stage.url, "--interval", "0.2", "--log", falling)
    assert result.exit_code == 1 and "acceptance fell from 0.83 to 0.17" in result.stdout
    assert "whether acceptance falls" not in result.stdout
    short = str(log_of(tmp_path, START, spec_line(8, 10)))
    with staged(*recorded("idle")) as stage:
        shown = run(stage.url, "--interval", "0.2", "--log", short).stdout
    assert "the log has only 1 line about drafts" in shown and "give --log FILE" not in shown


def test_a_falling_log_and_short_memory_cross(tmp_path: Path) -> None:
    falling = [spec_line(2700 - 200 * n, 3000) + load_line(0, 10.0 + 10 * n) for n in range(9)]
    file = str(log_of(tmp_path, START, *falling))
    with staged(*recorded("memory-short")) as stage:
        result = run(stage.url, "--interval", "0.2", "--json", "--log", file)
    found = json.loads(result.stdout)["models"][0]
    seen = {one["id"] for one in found["seen"]}
    assert {"signal-acceptance-falls-kv-climbs", "signal-preemptions"} <= seen
    assert found["causes"][0]["cause"] == "memory is short" and len(found["causes"][0]["for"]) == 2


def test_a_dead_server_is_diagnosed_from_its_log(tmp_path: Path) -> None:
    line = "ERROR ValueError: num_speculative_tokens:7 must be divisible by n_predict=2 (speculative)\n"
    address = f"http://127.0.0.1:{free_port()}"
    result = run(address, "--log", str(log_of(tmp_path, START, line)))
    assert result.exit_code == 1 and "divisible" in result.stdout and "connection refused" in result.stdout
    assert run(address).exit_code == 2
    assert run(address, "--log", str(log_of(tmp_path, START))).exit_code == 2


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=500))
def test_any_bytes_are_a_log_or_refused_as_none(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    file = tmp_path_factory.mktemp("logs") / "log"
    file.write_bytes(b"x" + raw)
    try:
        assert isinstance(read_log(file).facts(), dict)
    except ConfigError as error:
        assert "holds no line" in str(error)


def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(Path(sys.executable).read_bytes()[:300_000])
    for file in (program, log_of(tmp_path, "hello, this is my shopping list\n")):
        result = run(f"http://127.0.0.1:{free_port()}", "--log", str(file))
        assert result.exit_code == 2 and "holds no line of vLLM's or Augury's" in result.stderr and not result.stdout


def test_logs_that_are_not_there(tmp_path: Path) -> None:
    for file in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="--log"):
            read_log(file)
