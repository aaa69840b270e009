"""`augury diagnose --log FILE` without a server: why it did not start, how it drafted, lines of every release."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from augury.cli import app
from augury.tools.live.diagnose.log_args import command_of, read_args
from augury.tools.live.diagnose.server_log import read_log

VERSION = "(APIServer pid=1) INFO 11-02 08:00:01 [api_server.py:1580] vLLM API server version 0.26.0\n"
CONFIG = "{'method': 'eagle3', 'model': 'AngelSlim/Qwen3-8B_eagle3', 'num_speculative_tokens': 3}"
ARGS = (
    "(APIServer pid=1) INFO 11-02 08:00:01 [utils.py:233] non-default args: {'model_tag': 'Qwen/Qwen3-8B', "
    f"'model': 'Qwen/Qwen3-8B', 'enable_prefix_caching': False, 'speculative_config': {CONFIG}}}\n"
)
UP = "(APIServer pid=1) INFO:     Application startup complete.\n"
CORE = "(EngineCore pid=77) ERROR 11-02 08:01:09 [core.py:946] "
ECHO = """(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/usr/bin/vllm", line 8, in <module>
(APIServer pid=1)     sys.exit(main())
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def raised(error: str) -> str:
    """A traceback of the engine's process, each line with its prefix."""
    lines = ["Traceback (most recent call last):", '  File "/usr/core.py", line 937, in run', "    run()", error]
    return "".join(f"{CORE}{line}\n" for line in lines)


def diagnosed(tmp_path: Path, *parts: str, words: tuple[str, ...] = ()) -> tuple[int, dict[str, Any], str]:
    file = tmp_path / "server.log"
    file.write_text("".join(parts))
    made = CliRunner().invoke(app, ["diagnose", "--log", str(file), "--json", *words])
    shown = CliRunner().invoke(app, ["diagnose", "--log", str(file), *words])
    assert made.exit_code == shown.exit_code, shown.output
    return made.exit_code, json.loads(made.stdout)["models"][0], shown.stdout


# --- start-up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB.", "the memory does not hold"),
        ("ValueError: No available memory for the cache blocks. Try a larger utilization.", "the memory does not hold"),
        ("OSError: org/x is not a local folder and is not a valid model identifier", "a model or drafter that is not"),
        ("KeyError: 'layers.0.self_attn.qkv_proj.weight'", "a checkpoint whose weights"),
        ("RuntimeError: size mismatch for fc.weight", "a checkpoint whose weights"),
        ("ModuleNotFoundError: No module named 'arctic_inference'", "a package that is not installed"),
        ("ValueError: Model architectures ['NewForCausalLM'] are not supported for now.", "a class of models"),
        ("AssertionError: 6 is not divisible by 4", "sizes that do not divide"),
        ("OSError: [Errno 98] Address already in use", "the port is taken"),
        ("RuntimeError: CUDA error: no kernel image is available", "the GPU, its driver"),
        ("ValueError: Please pass the argument `trust_remote_code=True`", "code of the checkpoint's own"),
    ],
)
def test_a_start_that_failed_is_named_with_its_cause(tmp_path: Path, error: str, cause: str) -> None:
    code, found, shown = diagnosed(tmp_path, VERSION, ARGS, raised(error), ECHO)
    assert code == 1 and found["seen"][0]["id"] == "start-failed"
    assert found["causes"][0]["cause"].startswith(cause) and "Engine core initialization failed" not in shown
    assert found["facts"]["method"] == "eagle3" and found["facts"]["k"] == 3 and not found["not_known"]


def test_what_pydantic_says_stands_under_its_first_line(tmp_path: Path) -> None:
    error = "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig"
    lines = raised(error) + f"{CORE}  Value error, num_speculative_tokens:7 must be divisible by n_predict=2\n"
    code, found, shown = diagnosed(tmp_path, VERSION, lines, ECHO)
    assert code == 1 and "must be divisible by n_predict=2" in shown
    assert found["causes"][0]["cause"] == "this release does not take the configuration"
    usage = "vllm serve: error: argument --speculative-config: invalid loads value: '{method: eagle3}'\n"
    assert "invalid loads value" in diagnosed(tmp_path, VERSION, usage)[2]
    module = "usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --speculative-model a/b\n"
    assert "unrecognized arguments" in diagnosed(tmp_path, module)[2], "the whole log of such a start"


def test_the_command_in_the_log_is_examined(tmp_path: Path) -> None:
    gone = ARGS.replace("'method': 'eagle3',", "'method': 'eagle3', 'acceptance_method': 'strict',")
    code, found, shown = diagnosed(tmp_path, VERSION, gone, raised("ValueError: it was refused"), ECHO)
    assert code == 1 and "in the configuration: " in shown and found["facts"]["findings"]


def test_a_rule_of_the_plugin_is_no_fault_where_it_was_loaded(tmp_path: Path) -> None:
    args = ARGS.replace("'method': 'eagle3',", "'method': 'eagle3', 'rejection_sample_method': 'coupled',")
    loaded = "INFO 11-18 10:20:14 [__init__.py:54] - augury -> augury.plugins.vllm.stats:SpeculationStats\n"
    for lines, said in (((args,), True), ((args, loaded), False)):
        _, found, shown = diagnosed(tmp_path, VERSION, *lines, UP)
        assert ("value-augury-only" in found["facts"]["findings"]) is said is ("vLLM alone refuses it" in shown)


def test_a_server_that_came_up_did_not_fail(tmp_path: Path) -> None:
    warned = raised("ImportError: no module flashinfer")
    code, found, shown = diagnosed(tmp_path, VERSION, ARGS, warned, UP)
    assert code == 0 and "failed_in_log" not in found["facts"] and "nothing wrong found" in shown
    one_request = raised("ValueError: bad request")
    assert diagnosed(tmp_path, VERSION, ARGS, UP, one_request)[0] == 0, "one request's fault"
    died = raised("RuntimeError: CUDA error: an illegal memory access was encountered") + raised("EngineDeadError: x")
    code, found, _ = diagnosed(tmp_path, VERSION, ARGS, UP, died)
    assert code == 1 and found["seen"][0]["id"] == "engine-died"
    assert found["causes"][0]["cause"].startswith("the GPU")
    again = diagnosed(tmp_path, VERSION, raised("ValueError: x"), ECHO, VERSION, ARGS, UP)
    assert again[0] == 0, "the last run is the one that counts"


def test_users_do_not_make_errors(tmp_path: Path) -> None:
    said = "INFO Received request x: prompt: 'Traceback (most recent call last):'\nINFO y\nValueError: draft\n"
    assert diagnosed(tmp_path, VERSION, ARGS, said)[1]["facts"].get("failed_in_log") is None


def test_a_url_or_a_log_is_needed(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["diagnose"])
    assert made.exit_code == 2 and "--log FILE" in made.stderr


def test_arguments_become_a_command_again() -> None:
    args = read_args(ARGS)
    assert args is not None and args["speculative_config"]["num_speculative_tokens"] == 3
    written = command_of(args | {"served_model_name": ["a", "b"], "port": 8001})
    assert written.startswith('vllm serve Qwen/Qwen3-8B --no-enable-prefix-caching --speculative-config \'{"method"')
    assert written.endswith("--served-model-name a b --port 8001")
    assert read_args("non-default args: {'dtype': torch.bfloat16}") is None


# --- drafts ----------------------------------------------------------------------------------------------------------

LINES = {
    "0.8.4": "SpecDecoding metrics: Draft acceptance rate: 60.0%, Accepted: 1800 tokens, Drafted: 3000 tokens",
    "0.8.5": "SpecDecoding metrics: Draft acceptance rate: 60.0%, Mean acceptance length: 2.80, Accepted: 1800 tokens, "
    "Drafted: 3000 tokens, Per-position acceptance rate: 0.800, 0.600, 0.400",
    "0.11": "SpecDecoding metrics: Mean acceptance length: 2.80, Accepted throughput: 180.00 tokens/s, "
    "Drafted throughput: 300.00 tokens/s, Accepted: 1800 tokens, Drafted: 3000 tokens, "
    "Per-position acceptance rate: 0.800, 0.600, 0.400, "
    "Avg Draft acceptance rate: 60.0%",
}


@pytest.mark.parametrize("release", LINES)
def test_lines_of_every_release_are_read(tmp_path: Path, release: str) -> None:
    file = tmp_path / "log"
    file.write_text(VERSION + ARGS + UP + f"INFO 08-04 20:51:18 [metrics.py:86] {LINES[release]}\n" * 3)
    log = read_log(file)
    assert log.accepted == [(1800, 3000)] * 3 and log.drafting.rate == pytest.approx(0.6)
    assert log.drafting.length == pytest.approx(2.8)
    assert [round(rate, 2) for rate in log.drafting.marginal] == ([] if release == "0.8.4" else [0.8, 0.6, 0.4])


def test_the_first_engines_line_is_another_figure(tmp_path: Path) -> None:
    old = (
        "Speculative metrics: Draft acceptance rate: 0.200, System efficiency: 0.167, Number of speculative tokens: 5, "
    )
    file = tmp_path / "log"
    file.write_text(VERSION + f"INFO {old}Number of accepted tokens: 1, Number of draft tokens: 5.\n")
    assert read_log(file).accepted == []


def test_a_log_alone_is_judged_like_a_server(tmp_path: Path) -> None:
    line = f"INFO 08-04 20:51:18 [metrics.py:86] {LINES['0.8.5']}\n"
    code, found, shown = diagnosed(tmp_path, VERSION, ARGS, UP, line * 6)
    assert code == 0 and "nothing wrong found" in shown and "rate 0.600, length 2.80" in shown
    bad = line.replace("1800", "200").replace("2.80", "1.20").replace("0.800, 0.600, 0.400", "0.150, 0.040, 0.010")
    code, found, _ = diagnosed(tmp_path, VERSION, ARGS, UP, bad * 6)
    assert code == 1 and "rate-under-half" in [one["id"] for one in found["seen"]]


def test_the_log_speaks_for_a_server_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(VERSION + ARGS + UP + f"INFO 08-04 20:51:18 [metrics.py:86] {LINES['0.8.5']}\n" * 6)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers there
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        made = CliRunner().invoke(app, ["diagnose", url, "--log", str(tmp_path / "log")])
    assert made.exit_code == 2 and "from the log" in made.output
    assert "rate 0.600, length 2.80" in made.output and "not known: acceptance" not in made.output


def test_tokens_without_a_line_about_drafts_are_told(tmp_path: Path) -> None:
    load = (
        "INFO Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 80.0 tokens/s, "
        "Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 2.0%, Prefix cache hit rate: 1.0%\n"
    )
    code, found, _ = diagnosed(tmp_path, VERSION, ARGS, UP, load * 5)
    assert code == 1 and "regime-no-drafts" in [one["id"] for one in found["seen"]]
    quiet = load.replace("80.0", "0.0")
    assert diagnosed(tmp_path, VERSION, ARGS, UP, quiet * 5)[0] == 0
