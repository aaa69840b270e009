"""What advise and replay print for other planners, held to those planners' rules and, where installed, their code."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from augury.cli import app
from augury.tools.shared.planner_forms import (
    Expected,
    aiconfigurator_file,
    aiconfigurator_words,
    dynamo_file,
    speculating,
)

ADVISE = ("advise", "--target", "Qwen/Qwen3-8B", "--gpu", "H200", "--concurrency", "1,8")
# Fields of aiconfigurator 0.12's Task and of Dynamo 1.6's PlannerConfig, of which these files use some.
TASK = {
    "serving_mode",
    "model_path",
    "system_name",
    "backend_name",
    "total_gpus",
    "agg_num_gpu_candidates",
    "isl",
    "osl",
    "prefix",
    "nextn",
    "nextn_accepted",
}
PLANNER = {"backend", "mode", "model_name", "decode_engine_num_gpu", "speculative_nextn"}


def printed(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 2
    return result.stderr


def check_task(task: dict[str, Any]) -> None:
    """aiconfigurator's own conditions (sdk/speculative.py, normalize_speculative_decoding)."""
    assert set(task) <= TASK and {"serving_mode", "model_path", "system_name", "total_gpus"} <= set(task)
    tokens, accepted = task.get("nextn", 0), task.get("nextn_accepted")
    assert tokens == 0 or (accepted is not None and math.isfinite(accepted) and 0 <= accepted <= tokens)


def test_advice_as_experiments() -> None:
    found = yaml.safe_load(printed(*ADVISE, "--format", "aiconfigurator"))
    assert found["exps"][0] == "plain" and set(found) == {"exps", *found["exps"]} and len(found["exps"]) == 2
    for name in found["exps"]:
        check_task(found[name])
    plain, drafted = (found[name] for name in found["exps"])
    assert "nextn" not in plain and drafted == {
        **plain,
        **{name: drafted[name] for name in ("nextn", "nextn_accepted")},
    }
    assert plain["system_name"] == "h200_sxm" and plain["model_path"] == "Qwen/Qwen3-8B"
    record = json.loads(printed(*ADVISE, "--format", "json"))
    assert record["planners"]["nextn"] == drafted["nextn"] and record["method"] == found["exps"][1]
    assert record["planners"]["nextn_accepted"] == drafted["nextn_accepted"]


def test_advice_for_dynamos_planner() -> None:
    text = printed(*ADVISE, "--tp", "2", "--format", "dynamo")
    found = yaml.safe_load(text)
    assert set(found) == PLANNER and found["decode_engine_num_gpu"] == 2 and found["speculative_nextn"] > 0
    [mocker] = [line for line in text.splitlines() if "dynamo.mocker" in line]
    words = shlex.split(mocker)
    rates = [float(rate) for rate in words[words.index("--aic-nextn-accept-rates") + 1].split(",")]
    assert len(rates) == int(words[words.index("--aic-nextn") + 1]) <= 5 and all(0 <= rate <= 1 for rate in rates)


@pytest.mark.parametrize("form", ["aiconfigurator", "dynamo"])
def test_what_those_planners_could_not_use_is_refused(form: str, tmp_path: Path) -> None:
    assert "hub id" in refused("advise", "--target", "qwen3-8b", "--gpu", "H200", "--format", form)
    cannot = refused("advise", "--target", "meta-llama/Llama-3.3-70B", "--gpu", "L4", "--format", form)
    assert "cannot: needs" in cannot
    if form == "aiconfigurator":
        assert "no figures of T4" in refused("advise", "--target", "Qwen/Qwen3-0.6B", "--gpu", "T4", "--format", form)


def test_where_nothing_is_advised_the_files_do_not_speculate() -> None:
    small = ("advise", "--target", "Qwen/Qwen3-0.6B", "--gpu", "H200")
    assert yaml.safe_load(printed(*small, "--format", "aiconfigurator"))["exps"] == ["plain"]
    assert yaml.safe_load(printed(*small, "--format", "dynamo"))["speculative_nextn"] == 0


def test_a_replay(tmp_path: Path) -> None:
    """The tokens a step are those of the profile, and the rates by place multiply up to them."""
    trace = tmp_path / "trace.jsonl"
    said = "the cat sat on the mat and the cat sat on the mat again " * 6
    talk = [{"role": "user", "content": "go"}, {"role": "assistant", "content": said}]
    trace.write_text(json.dumps({"messages": talk}))
    asked = ("replay", str(trace), "--tokenizer", "words", "--method", "ngram", "--grid", "num_speculative_tokens=4")
    profile = json.loads(printed(*asked, "--json"))["profiles"][0]["replay"]
    words = shlex.split(printed(*asked, "--format", "aiconfigurator"))
    assert words[:3] == ["--nextn", "4", "--nextn-accepted"]
    assert float(words[3]) == pytest.approx(profile["accepted_tokens"] / profile["steps"], abs=1e-3)
    text = printed(*asked, "--format", "dynamo")
    assert yaml.safe_load(text) == {"backend": "vllm", "mode": "agg", "speculative_nextn": 4}
    rates = [float(rate) for rate in text.partition("--aic-nextn-accept-rates ")[2].split()[0].split(",")]
    product = [math.prod(rates[: i + 1]) for i in range(len(rates))]
    assert sum(product) == pytest.approx(float(words[3]), abs=0.01)


@given(st.integers(1, 64), st.floats(-1, 100), st.lists(st.floats(0, 1), min_size=64, max_size=64))
def test_figures_stay_in_range_whatever_is_expected(tokens: int, accepted: float, rates: list[float]) -> None:
    expected = Expected(tokens, accepted, rates)
    task = {"serving_mode": "agg", "model_path": "a/b", "system_name": "l4", "total_gpus": 1}
    found = yaml.safe_load(aiconfigurator_file({"x": {**task, **speculating(expected)}}, ["a\nb"]))
    check_task(found["x"])
    words = shlex.split(aiconfigurator_words(expected))
    assert 0 <= float(words[3]) <= int(words[1]) == tokens
    assert yaml.safe_load(dynamo_file({"mode": "agg"}, expected, ["a\nmode: b"]))["mode"] == "agg"


def test_aiconfigurator_reads_the_experiments(tmp_path: Path) -> None:
    """Its own reader, where it is installed: `pip install aiconfigurator`, which is large."""
    main = pytest.importorskip("aiconfigurator.cli.main", reason="aiconfigurator is not installed")
    file = tmp_path / "exp.yaml"
    file.write_text(printed(*ADVISE, "--format", "aiconfigurator"))
    tasks = main.build_experiment_tasks(yaml_path=str(file))
    assert [task.nextn > 0 for task in tasks.values()] == [False, True]


def test_dynamos_planner_reads_its_file(tmp_path: Path) -> None:
    """Its own class, where it is installed: `pip install ai-dynamo`."""
    config = pytest.importorskip("dynamo.planner.config.planner_config", reason="ai-dynamo is not installed")
    file = tmp_path / "planner.yaml"
    file.write_text(printed(*ADVISE, "--format", "dynamo"))
    assert config.PlannerConfig.from_config_arg(str(file)).speculative_nextn > 0
