"""`augury advise` as a user runs it: tables in eighty columns, JSON, files, and errors in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from advise_cases import EAGLE3_HEAD
from curves import curve_file
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from typer.testing import CliRunner

from augury.cli import app
from augury.config.resolve import resolve
from augury.tools.advise.served import ENOUGH, profile_of, traffic_of
from augury.tools.advise.traffic import Traffic
from augury.tools.live.reading import Reading, readings
from augury.tools.live.scrape import Scrape, parse
from augury.tools.shared.http import Reply
from augury.tools.shared.profile import check_profile, make_profile

CODE = """def add(a, b):
    total = a + b
    return total

class Sum:
    def add(self, a, b):
        return a + b
"""


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["advise", *words], env={"COLUMNS": "80", "NO_COLOR": "1"})


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Edits: the answer repeats its prompt with one word changed."""
    file = tmp_path / "edits.jsonl"
    lines = []
    for i in range(12):
        text = CODE.replace("total", f"sum_{i}").replace("Sum", f"Sum{i}")
        answer = f"```python\n{text.replace('add', 'plus')}```"
        lines.append({"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]})
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture
def curve(tmp_path: Path) -> Path:
    """Rows that cost little."""
    written = curve_file(rows=(1, 2, 4, 8, 16), requests=(1, 4))
    for point in written["steps"]:
        point["ms"] = 10 + 0.1 * point["rows"] * point["requests"]
        point["low"] = point["high"] = point["ms"]
    file = tmp_path / "curve.json"
    file.write_text(json.dumps(written))
    return file


def test_a_screen_of_eighty_columns(trace: Path) -> None:
    told = run("--target", "llama-3.1-8b", "--gpu", "h200", "--trace", str(trace), "--tokenizer", "words")
    assert told.exit_code == 0, told.output
    table = told.output[: min(told.output.index(f"{name}: ") for name in ("suffix", "ngram_gpu", "eagle3"))]
    assert "suffix" in table and "eagle3*" in table
    assert all(len(line.rstrip()) <= 80 for line in table.splitlines())
    assert "replay of 12 answers of yours" in told.output and "published, not yours" in told.output
    assert "-sc '{" in told.output and "Assumed" in told.output and "To be surer" in told.output
    pasted = told.output.split("-sc '")[1].split("'\n")[0]
    assert resolve(json.loads(pasted), as_of="0.32") is not None


def test_json_has_everything_and_out_has_the_configuration(trace: Path, curve: Path, tmp_path: Path) -> None:
    out, picture = tmp_path / "sc.json", tmp_path / "advice.png"
    words = ["--target", "llama-3.1-8b", "--cost-curve", str(curve), "--trace", str(trace), "--tokenizer", "words"]
    words += ["--concurrency", "1,4", "--json", "--out", str(out), "--plot", str(picture)]
    told = run(*words)
    assert told.exit_code == 0, told.output
    said = json.loads(told.stdout)
    assert json.loads(out.read_text()) == said["recommended"] and picture.stat().st_size > 1000
    assert said["traffic"]["kind"] == "code" and said["traffic"]["answers"] == 12
    first = said["methods"][0]
    assert first["verdict"] == "use" and first["acceptance_is_yours"]
    for at in first["by_requests"]:
        assert 1 < at["low"] <= at["speedup"] <= at["high"]
        assert at["speedup"] == pytest.approx(at["tokens_per_step"] * at["plain_step_ms"] / at["step_ms"], rel=1e-3)
        assert 1 < at["end_to_end"]["value"] <= at["speedup"]
    # What needs a drafter was not timed by this curve, and is said to be missing rather than guessed.
    assert {m["method"]: m["verdict"] for m in said["methods"]}["draft_model"] == "not known"


def test_embeddings_are_told_off_without_a_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    told = run("--target", str(tmp_path), "--gpu", "L4")
    assert told.exit_code == 0 and "Do not speculate" in told.output and "nothing to speed up" in told.output
    assert "-sc" not in told.output


def test_a_drafter_and_its_profile(tmp_path: Path) -> None:
    head = tmp_path / "EAGLE3-head"
    head.mkdir()
    (head / "config.json").write_text(json.dumps(EAGLE3_HEAD))
    profile = make_profile("eagle3", 4, [900, 800, 700, 600], 1000, [100, 100, 100, 100, 600], 4.0, {"model": "mine"})
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(profile))
    told = run("--target", "llama-3.1-8b", "--gpu", "H100", "--drafter", str(head), "--profile", str(file), "--json")
    said = json.loads(told.stdout)
    assert said["method"] == "eagle3" and said["recommended"]["model"] == str(head)
    assert said["recommended"]["num_speculative_tokens"] == 4
    assert said["methods"][0]["acceptance_source"] == "your profile, K=4, mine"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--target", "llama-3.1-8b"], "give --gpu NAME or --cost-curve FILE"),
        (["--target", "llama-3.1-8b", "--gpu", "H9"], "--gpu H9: not in the table"),
        (["--target", "llama-3.1-8b", "--gpu", "H200", "--concurrency", "1,x"], "--concurrency 1,x"),
        (["--target", "nobody/nothing", "--gpu", "H200"], "--target nobody/nothing"),
        (["--target", "llama-3.1-8b", "--gpu", "H200", "--vllm-version", "new"], "--vllm-version='new'"),
        (["--target", "llama-3.1-8b", "--gpu", "H200", "--vllm-version", "0.7"], "begins with vLLM 0.8.2"),
        (["--target", "llama-3.1-8b", "--gpu", "H200", "--tp", "3"], "--tp 3: the target has 32 attention heads"),
        (["--target", "llama-3.1-8b", "--gpu", "H200", "--drafter", "/nowhere"], "--drafter /nowhere"),
        (["--target", "llama-3.1-8b", "--gpu", "H200", "--out", "/nowhere/x"], "--out /nowhere/x"),
        (["--target", "llama-3.1-8b", "--cost-curve", "/nowhere.json"], "/nowhere.json: No such file"),
        (["--target", "llama-3.1-8b", "--gpu", "H200", "--url", "http://127.0.0.1:9"], "127.0.0.1:9"),
    ],
)
def test_errors_are_one_line_that_names_the_option(words: list[str], says: str) -> None:
    told = run(*words)
    assert told.exit_code == 2 and says in told.output
    assert told.output.startswith("error: ") and told.output.count("\n") == 1


def test_a_curve_of_another_model_is_refused(curve: Path) -> None:
    written = json.loads(curve.read_text())
    written["model"] = {"name": "toy", "layers": 2, "hidden": 64}
    curve.write_text(json.dumps(written))
    told = run("--target", "llama-3.1-8b", "--cost-curve", str(curve))
    assert told.exit_code == 2 and "measured on toy, whose layers is 2; the target's is 32" in told.output


def test_a_trace_of_prompts_alone_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
    told = run("--target", "llama-3.1-8b", "--gpu", "H200", "--trace", str(file), "--tokenizer", "bytes")
    assert told.exit_code == 2 and "contains no answers" in told.output


@pytest.mark.parametrize("more", ["", ", '--json'"])
def test_advice_needs_neither_torch_nor_a_compiler(more: str) -> None:
    code = (
        "import sys; from augury.cli import app\n"
        f"try: app(['advise', '--target', 'llama-3.1-8b', '--gpu', 'H200'{more}])\n"
        "except SystemExit: pass\n"
        "bad = {'torch', 'transformers', 'numba'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- a live server ---------------------------------------------------------------------------------------------------


def reading(finished: float = 100, method: str | None = "ngram") -> Reading:
    """A server's metrics as Prometheus text, read back."""
    registry = CollectorRegistry()
    labels = ["model_name", "engine"]

    def count(name: str, value: float, **more: str) -> None:
        names = [*labels, *more]
        made = (
            Counter(f"vllm:{name}", name, names, registry=registry)
            if f"vllm:{name}" not in seen
            else seen[f"vllm:{name}"]
        )
        seen[f"vllm:{name}"] = made
        made.labels("m", "0", *more.values()).inc(value)

    seen: dict[str, Counter] = {}
    for name, value in (("prompt_tokens", 30_000), ("generation_tokens", 12_000), ("prefix_cache_queries", 30_000)):
        count(name, value)
    count("prefix_cache_hits", 7_500)
    count("request_success", finished, finished_reason="stop")
    for name, value in (("drafts", 1000), ("draft_tokens", 2000), ("accepted_tokens", 900)):
        count(f"spec_decode_num_{name}", value)
    for position, value in (("0", 600), ("1", 300)):
        count("spec_decode_num_accepted_tokens_per_pos", value, position=position)
    Gauge("vllm:num_requests_running", "running", labels, registry=registry).labels("m", "0").set(7)
    if method:
        Gauge("augury:method_info", "method", [*labels, "method"], registry=registry).labels("m", "0", method).set(1)
    samples, names = parse(Reply(generate_latest(registry), "text/plain", 0.0), "http://here")
    return readings(Scrape(0.0, 0.0, samples, frozenset(names)))["m"]


def test_a_server_tells_its_traffic_and_its_drafter() -> None:
    traffic = traffic_of(reading(), Traffic(), "http://here")
    assert (traffic.prompt_tokens, traffic.answer_tokens, traffic.running, traffic.cached) == (300, 120, 7, 0.25)
    profile = profile_of(reading(), "http://here")
    assert profile is not None and check_profile(dict(profile), "live")
    assert profile["mean_accept_length"] == pytest.approx(1.9) and profile["num_speculative_tokens"] == 2
    assert profile["replay"]["share_drafted"] == pytest.approx(1000 / (12_000 - 900 - 100))
    assert profile_of(reading(method=None), "http://here") is None  # vLLM does not say what it drafts with


def test_a_trace_knows_lengths_better_than_a_server_and_a_young_server_knows_none() -> None:
    kept = traffic_of(reading(), Traffic(10, 20, requests=5, source="trace"), "http://here")
    assert (kept.prompt_tokens, kept.answer_tokens, kept.running) == (10, 20, 7)
    with pytest.raises(ValueError, match=f"wait for {ENOUGH}"):
        traffic_of(reading(finished=3), Traffic(), "http://here")
