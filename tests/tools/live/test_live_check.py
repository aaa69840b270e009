"""`augury check` on recorded vLLM texts of every regime: verdicts, exit codes, both formats, start-up."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from served import free_port
from staged import body, staged
from typer.testing import CliRunner
from vllm_text import EAGLE3, Engine, Moment, later, made, recorded, started, text

from augury.cli import app
from augury.tools.knowledge.base import knowledge
from augury.tools.live import verdict
from augury.tools.live.probes import built_in

VERSION = {"version": body('{"version": "0.29.0"}', "application/json")}


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), prog_name="augury")


def check(name: str, *words: str) -> tuple[Any, dict[str, Any], dict[str, str]]:
    """A scene checked: the result, its record, and the state of every check by name."""
    with staged(*recorded(name), **VERSION) as stage:
        result = run("check", stage.url, "--interval", "0.1", "--json", *words)
    found = json.loads(result.stdout)
    states = {one["name"]: one["state"] for one in found["models"][0]["checks"]}
    return result, found, states


@pytest.mark.parametrize(
    ("scene", "code", "expected"),
    [
        (
            "healthy-eagle3",
            0,
            {
                "drafts": "pass",
                "acceptance rate": "pass",
                "acceptance length": "pass",
                "first position": "pass",
                "later positions": "pass",
                "queue": "pass",
            },
        ),
        ("first-position-low", 1, {"acceptance rate": "fail", "acceptance length": "warn", "first position": "warn"}),
        ("length-one", 1, {"drafts": "pass", "acceptance rate": "fail", "acceptance length": "fail"}),
        ("cliff-at-3", 0, {"first position": "pass", "later positions": "warn", "acceptance rate": "pass"}),  # of K=7
        ("busy-batch", 0, {"acceptance rate": "pass", "queue": "note"}),
        ("memory-short", 0, {"queue": "warn", "KV cache": "warn"}),
        ("no-drafts", 1, {"drafts": "fail"}),
        ("speculation-off", 1, {"drafts": "fail"}),
        ("idle", 0, {"drafts": "pass", "acceptance rate": "pass"}),
    ],
)
def test_each_regime_has_its_verdict(scene: str, code: int, expected: dict[str, str]) -> None:
    result, found, states = check(scene, "--method", "eagle3")
    assert result.exit_code == code == found["exit_code"]
    assert {name: states[name] for name in expected} == expected
    assert found["engine"] == "vLLM" and found["version"] == "0.29.0"


def test_warnings_count_where_asked() -> None:
    assert check("cliff-at-3", "--method", "eagle3")[0].exit_code == 0
    assert check("cliff-at-3", "--method", "eagle3", "--strict")[0].exit_code == 1


def test_without_a_method_the_band_is_not_judged_but_the_figures_are_shown() -> None:
    result, found, states = check("healthy-eagle3")
    assert states["acceptance rate"] == states["acceptance length"] == "unknown" and states["first position"] == "pass"
    assert result.exit_code == 0 and found["models"][0]["window"]["acceptance_rate"] == pytest.approx(0.83)
    with staged(*recorded("healthy-eagle3")) as stage:
        assert "unknown: give --method" in run("check", stage.url, "--interval", "0.1").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--method", "eagle3"),
        ("-sc", '{"method": "eagle3", "model": "x", "num_speculative_tokens": 3}'),
        ("--config", 'vllm serve m -sc \'{"method": "eagle3", "model": "x", "num_speculative_tokens": 3}\''),
    ],
)
def test_the_method_may_be_told_in_many_ways(words: tuple[str, ...]) -> None:
    found = check("healthy-eagle3", *(("--config" if word == "-sc" else word) for word in words))[1]
    assert found["models"][0]["expected"]["rate"] == [0.46, 0.7]


def test_a_band_of_your_own() -> None:
    assert check("healthy-eagle3", "--band", "0.9,1.0")[2]["acceptance rate"] == "warn"
    assert check("healthy-eagle3", "--band", "0.8,0.9")[2]["acceptance rate"] == "pass"


def test_drafts_of_different_lengths_are_not_judged_by_position() -> None:
    _, found, states = check("suffix-short-drafts", "--method", "suffix")
    assert states["later positions"] == "unknown"
    assert any("divides by all drafts" in remark for remark in found["models"][0]["remarks"])


def test_an_idle_server_and_a_restart_are_said() -> None:
    assert any("no traffic" in remark for remark in check("idle")[1]["models"][0]["remarks"])
    anew = text(Moment([started(EAGLE3, drafts=50)]))
    with staged(made("healthy-eagle3")[0], anew) as stage:
        found = json.loads(run("check", stage.url, "--interval", "0.1", "--json").stdout)["models"][0]
    assert found["window"]["restarted"] and any("the server restarted" in remark for remark in found["remarks"])
    assert found["window"]["per_second"]["drafts"] is None


def test_several_models_have_a_table_each_and_one_may_be_picked() -> None:
    one, two = started(EAGLE3), replace(started((0.2, 0.1, 0.0)), model="second")
    texts = [text(Moment([one, two])), text(Moment([later(one, 500), later(two, 500)]))]
    with staged(*texts) as stage:
        found = json.loads(run("check", stage.url, "--interval", "0.1", "--json").stdout)
    assert [one["model"] for one in found["models"]] == ["meta-llama/Llama-3.1-8B-Instruct", "second"]
    with staged(*texts) as stage:
        picked = json.loads(run("check", stage.url, "--interval", "0.1", "--json", "--model", "second").stdout)
        assert [one["model"] for one in picked["models"]] == ["second"]
        wrong = run("check", stage.url, "--model", "third")
    assert wrong.exit_code == 2 and "it has meta-llama" in wrong.stderr


def test_what_cannot_be_read_is_one_line_and_exit_code_2() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    result = run("check", address)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and "connection refused" in result.stderr
    record = json.loads(run("check", address, "--json").stdout)
    assert record["kind"] == "refused" and record["exit_code"] == 2
    with staged(body("<html>")) as stage:
        assert run("check", stage.url).exit_code == 2
    for words in (("--method", "eagle9"), ("--band", "3"), ("--config", "no-such-file")):
        assert run("check", address, *words).exit_code == 2


def test_a_piped_screen_is_plain_text() -> None:
    with staged(*recorded("length-one"), **VERSION) as stage:
        shown = run("check", stage.url, "--interval", "0.1", "--method", "eagle3").stdout
    assert "\x1b" not in shown and "[length-one]" in shown and f"augury diagnose {stage.url}" in shown
    assert "not healthy" in shown and "by position" in shown


def test_a_hostile_name_cannot_steer_the_terminal() -> None:
    evil = replace(started(EAGLE3), model="x\x1b[2J\u202ey")
    with staged(text(Moment([evil])), text(Moment([later(evil, 500)]))) as stage:
        shown = run("check", stage.url, "--interval", "0.1").stdout
    assert "\x1b" not in shown and "\u202e" not in shown


def test_every_check_names_an_entry_that_exists() -> None:
    for scene in ("length-one", "cliff-at-3", "memory-short", "no-drafts"):
        for one in check(scene, "--method", "eagle3")[1]["models"][0]["checks"]:
            assert not one["knowledge"] or one["knowledge"] in knowledge()
    assert set(verdict.STATES) == {"error", "warning", "note"}


def test_probes_send_requests_and_their_tokens_are_counted() -> None:
    before = started(EAGLE3)
    models = body('{"data": [{"id": "m"}]}', "application/json")
    answer = body('{"usage": {"completion_tokens": 96}, "choices": []}', "application/json")
    with staged(
        text(Moment([before])), text(Moment([later(before, 900)])), v1__models=models, v1__completions=answer
    ) as stage:
        result = run("check", stage.url, "--interval", "0.1", "--probe", "--json")
        asked = [path for path, _ in stage.seen if path == "/v1/completions"]
    assert result.exit_code == 0 and len(asked) == 8
    with staged(text(Moment([before])), v1__models=body("{}", "application/json")) as stage:
        result = run("check", stage.url, "--interval", "0.1", "--probe")
    assert result.exit_code == 2 and "lists no model" in result.stderr


def test_probes_differ_and_are_left_out_of_what_was_before() -> None:
    """A server that does not tell probes apart: since its start is what was there before them."""
    before = started(EAGLE3)
    models = body('{"data": [{"id": "m"}]}', "application/json")
    answer = body('{"choices": []}', "application/json")
    with staged(
        text(Moment([before])), text(Moment([later(before, 900)])), v1__models=models, v1__completions=answer
    ) as stage:
        record = json.loads(run("check", stage.url, "--interval", "0.1", "--probe", "--json").stdout)["models"][0]
    with staged(text(Moment([before]))) as stage:
        alone = json.loads(run("check", stage.url, "--interval", "0.1", "--json").stdout)["models"][0]
    assert record["window"]["since_start"] == alone["window"]["since_start"]
    assert record["window"]["judged_by"] == "interval" and record["window"]["probes"] == 8
    assert "acceptance now" not in [check["name"] for check in record["checks"]], "probes are not the traffic"
    texts = [prompt for prompt in built_in() if isinstance(prompt, str)]
    assert len(set(texts)) == 8 and len({text.split()[0] for text in texts}) > 1


def test_probes_of_the_operators_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one"}\n{"messages": [{"role": "user", "content": "two"}]}\n')
    moments = text(Moment([started(EAGLE3)])), text(Moment([later(started(EAGLE3), 900)]))
    told = {
        "v1__models": body('{"data": [{"id": "m"}]}', "application/json"),
        "v1__completions": body("{}", "application/json"),
        "v1__chat__completions": body("{}", "application/json"),
    }
    with staged(*moments, **told) as stage:
        assert run("check", stage.url, "--interval", "0.1", "--prompts", str(file), "--json").exit_code == 0
        asked = [path for path, _ in stage.seen if path.startswith("/v1/c")]
    assert asked == ["/v1/completions", "/v1/chat/completions"]


def test_a_server_without_traffic_yet_is_not_judged() -> None:
    fresh = text(Moment([Engine(0, EAGLE3, finished=0, queries=0, hits=0)]))
    with staged(fresh) as stage:
        result = run("check", stage.url, "--interval", "0.1")
    assert result.exit_code == 0 and "no traffic since the start" in result.stdout


# --- start-up --------------------------------------------------------------------------------------------------------

HEAVY = ("torch", "transformers", "numba", "matplotlib", "numpy")


@pytest.mark.parametrize("command", ["check", "watch", "diagnose"])
def test_the_commands_load_nothing_heavy(command: str) -> None:
    words = {"watch": ["--once"]}.get(command, [])
    code = (
        f"import atexit, sys; atexit.register(lambda: print([m for m in {HEAVY} if m in sys.modules]));"
        "from augury.cli import main; main()"
    )
    with staged(*recorded("healthy-eagle3")) as stage:
        done = subprocess.run(
            [sys.executable, "-c", code, command, stage.url, "--interval", "0.1", *words],
            capture_output=True,
            text=True,
        )
    assert done.stdout.strip().endswith("[]"), done
