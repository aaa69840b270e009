"""`augury bench --methods`: which lines there are, the report's shape, and every method on the embedded model."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shipped import SHIPPED_EAGLE3

from augury.config.errors import ConfigError
from augury.config.resolve import resolve
from augury.config.runnable import check_runnable
from augury.methods.registry import METHODS
from augury.tools.bench import command
from augury.tools.bench.methods import find_gates, run_methods, saving
from augury.tools.bench.methods_lines import REASONS, MethodLine, _reasons, all_lines, choose_lines
from augury.tools.bench.methods_run import DRAFTER, REST, TARGET, MethodRan, MethodRecord, clocked
from augury.tools.bench.methods_screen import accepted_cells, cost_cells, figures, gate_note, tables_of
from augury.tools.bench.rounds import Key
from augury.train.gates import Gates


def plan(model: Path | str, prompts: Path | str, **changes: Any) -> command.BenchPlan:
    settings: dict[str, Any] = {
        "model": str(model),
        "peers": [],
        "batches": [1, 2],
        "prompts": [str(prompts)],
        "max_tokens": 12,
        "rounds": 2,
        "threads": 2,
        "dtype": "float32",
        "configs": [{"method": "ngram", "num_speculative_tokens": 4}],
    }
    return command.BenchPlan(**(settings | changes))


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.txt"
    file.write_text("abcabcabc\nthe cat sat on the mat and the cat sat\nqqqq\n")
    return file


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates of a test stay with it, and so do the threads that a run asks for."""
    monkeypatch.setattr(os, "environ", dict(os.environ) | {"AUGURY_CACHE": str(tmp_path / "cache")})


def test_every_method_has_a_line_or_a_reason() -> None:
    lines, left_out = choose_lines(["all"])
    assert {line.method for line in lines} - {None} == set(METHODS) - set(REASONS)
    assert left_out == REASONS
    assert len({line.name for line in lines}) == len(lines)
    for line in lines:
        if line.method and line.method not in ("extract_hidden_states", "mtp"):
            spec = line.speculative | ({"model": "no/such-head"} if line.gate else {})
            parsed = resolve(spec)
            assert parsed is not None
            check_runnable(parsed)
            assert parsed.drafts_trees == line.name.endswith("tree")


def test_lines_by_name() -> None:
    assert [line.name for line in choose_lines(["eagle3"])[0]] == ["plain", "eagle3", "eagle3 tree", "eagle3 parallel"]
    blocks = ["plain", "dflash", "dflash tree", "dflash2", "dflash2 tree", "dspark", "dspark tree"]
    assert [line.name for line in choose_lines(["dflash", "dspark"])[0]] == blocks
    assert [line.name for line in choose_lines(["deepseek_mtp", "ngram"])[0]] == ["plain", "ngram", "mtp", "mtp tree"]


def test_a_method_without_a_gate_is_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "dspark", replace(METHODS["dspark"], gates={}))
    assert "measure a drafter of your own" in _reasons()["dspark"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": "ngram,hydra"}, "--methods hydra: unknown; write all, or choose from ngram"),
        ({"methods": "custom_class"}, "your own class"),
        ({"methods": "all", "profile": True}, "--profile and --methods cannot go together"),
        ({"methods": "all", "peers": "augury"}, "--peers and --methods cannot go together"),
        ({"methods": "all", "speculative_config": ['{"method": "suffix"}']}, "-sc and --methods cannot go together"),
        ({"retrain": True}, "--retrain belongs to --methods"),
    ],
)
def test_bad_options_are_one_line(options: dict[str, Any], message: str) -> None:
    defaults = {"model": "default", "peers": "", "batch": "1", "prompts": "chat", "max_tokens": 1, "rounds": 1}
    with pytest.raises(ConfigError, match=message):
        command.bench(**(defaults | options))


def test_figures() -> None:
    record, line = MethodRecord(), MethodLine("medusa", "medusa", {"method": "medusa"}, "medusa")
    for number in range(2):
        record.add(Key("chat", 1, "plain"), number, [0, 1], MethodRan(2.0, [[1, 2], [3, 4]], steps=4, step_tokens=4))
        parts = {TARGET: 0.02, DRAFTER: 0.004, REST: 0.002}
        ran = MethodRan(1.0, [[1, 2], [3, 5]], 2, 6, 3, 0.0, 2, 4, parts, [2, 1], [2, 2, 2][: 2 + number])
        ran.accepted_at += [0] * number
        record.add(Key("chat", 1, "medusa"), number, [0, 1], ran)
    found = figures(record, line, Key("chat", 1, "medusa"))
    assert found["to_plain"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert found["acceptance_rate"] == 0.5 and found["acceptance_length"] == 2.5
    assert found["acceptance_by_position"] == [1.0, 0.5, 0.0]
    assert found["step_ms"] == pytest.approx({TARGET: 10.0, DRAFTER: 2.0, REST: 1.0})
    assert found["same_text"] == {"equal": 1, "total": 2, "first_difference": 1}
    assert accepted_cells(found) == ["medusa*", "50%", "2.50", "1/2", "100 50 0"]
    assert cost_cells(found) == ["medusa*", "10.0", "2.0", "1.0", "2.00", "4.0", "2.00"]
    plain = figures(record, MethodLine("plain", None), Key("chat", 1, "plain"))
    assert plain["same_text"] is plain["to_plain"] is plain["acceptance_rate"] is None
    assert [table.row_count for table in tables_of([plain, found])] == [1, 2]
    assert gate_note({}) is None
    note = gate_note({"eagle": {"seconds": 41.3}})
    assert note and "eagle 41" in note and "not of a method's quality" in note


def test_methods_of_a_toy(
    toy_model: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """Two methods end to end: the gate is trained once, found again, and every figure is there."""
    picture, asked = tmp_path / "methods.png", plan(toy_model, questions)
    report = run_methods(asked, ["ngram", "medusa"], as_json=True, plot=picture)
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(report))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert {(r["batch"], r["line"]) for r in report["results"]} == {
        (batch, name) for batch in (1, 2) for name in ("plain", "ngram", "medusa", "medusa tree")
    }
    for result in report["results"]:
        assert result["speed"]["median"] > 0 and result["step_ms"][TARGET] > 0 and result["step_ms"][REST] > 0
        if result["method"]:
            assert result["same_text"]["equal"] == result["same_text"]["total"] > 0
            assert result["step_ms"][DRAFTER] > 0 and result["to_plain"]["median"] > 0
            assert len(result["acceptance_by_position"]) == (4 if result["gate"] else 0)  # nothing here repeats
    medusa = next(r for r in report["results"] if r["line"] == "medusa")
    assert medusa["acceptance_rate"] > 0.5  # chance gives less than a hundredth
    assert set(report["gates"]) == {"medusa"} and "not of a method's quality" in report["gates_are"]
    assert not report["broken"] and report["conditions"]["temperature"] == 0.0

    monkeypatch.setattr(Gates, "train", lambda *_: pytest.fail("trained again"))
    run_methods(plan(toy_model, questions, rounds=1, batches=[1]), ["medusa"])
    shown = capsys.readouterr().out
    assert "medusa tree*" in shown and "gate heads: trained on these very prompts" in shown and "greedy" in shown


def test_a_line_that_cannot_run_is_named(toy_model: Path, questions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from augury.tools.bench import methods_lines

    bad = MethodLine("eagle", "eagle", {"method": "eagle", "model": "/no/such/head", "num_speculative_tokens": 2})
    monkeypatch.setattr(methods_lines, "all_lines", lambda: [MethodLine("plain", None), bad])
    report = run_methods(plan(toy_model, questions, rounds=1, batches=[1]), ["eagle"], as_json=True)
    assert "/no/such/head" in report["broken"]["eagle"] and [r["line"] for r in report["results"]] == ["plain"]


def test_clocks_are_where_they_say(toy_model: Path) -> None:
    from augury import LLM, SamplingParams

    llm = LLM(str(toy_model), device="cpu", max_model_len=128, speculative_config={"method": "suffix"})
    steps = clocked(llm.engine)
    llm.generate("abcabcabc", SamplingParams(temperature=0, max_tokens=9, ignore_eos=True), use_tqdm=False)
    assert steps.read_tokens == 9 and steps.tokens == 8  # a token a byte; the first comes with the prompt's pass
    assert all(set(step) == {TARGET, DRAFTER, REST} and min(step.values()) > 0 for step in steps.decode)


# --- the embedded model --------------------------------------------------------------------------------------------

FULL = "AUGURY_TEST_FULL" in os.environ
TRAINED = [line for line in all_lines() if line.gate]
# Training a gate takes a minute of two cores: the quick kinds always run, all of them if AUGURY_TEST_FULL is set.
QUICK = ("medusa", "mlp_speculator")
TRIED = [line for line in TRAINED if FULL or line.gate in QUICK]
SHIPPED = [line for line in TRAINED if line.name in ("eagle3", "eagle3 tree")]
QUESTIONS = ("Why is the sky blue?", "How do I boil an egg?", "What is a prime number?")
NEW_TOKENS = 14


@pytest.fixture(scope="module")
def chats(default_model: Path) -> list[list[int]]:
    from augury.model.tokenizer import Tokenizer

    tokenizer = Tokenizer(default_model)
    asked = [[{"role": "user", "content": text}] for text in QUESTIONS]
    return [tokenizer.chat(messages, add_generation_prompt=True) for messages in asked]


def texts(llm: Any, chats: list[list[int]], temperature: float, batch: int) -> list[list[int]]:
    from augury import SamplingParams

    found = []
    for start in range(0, len(chats), batch):
        group = range(start, start + batch)
        params = [
            SamplingParams(temperature=temperature, seed=i, max_tokens=NEW_TOKENS, ignore_eos=True) for i in group
        ]
        llm.reset_prefix_cache()
        outputs = llm.generate([{"prompt_token_ids": chats[i]} for i in group], params, use_tqdm=False)
        found += [output.outputs[0].token_ids for output in outputs]
    return found


class Target:
    """A model, what plain decoding says, and gates trained for seconds on three short answers, when a line asks."""

    def __init__(self, directory: Path, chats: list[list[int]], gates: Path) -> None:
        self.directory, self.chats = directory, chats
        self.plain = self.load(directory)
        self.texts = {temperature: texts(self.plain, chats, temperature, 1) for temperature in (0.0, 0.8)}
        self.home = Gates(directory, chats, NEW_TOKENS, gates)

    def load(self, directory: Path, **settings: Any) -> Any:
        from augury import LLM

        return LLM(str(directory), device="cpu", max_model_len=256, max_num_seqs=4, **settings)

    def check(self, llm: Any, temperature: float) -> None:
        """All at once, and the first alone; each alone with AUGURY_TEST_FULL."""
        want, alone = self.texts[temperature], len(self.chats) if FULL else 1
        assert texts(llm, self.chats[:alone], temperature, 1) == want[:alone]
        assert texts(llm, self.chats, temperature, len(self.chats)) == want

    def check_drafted(self, llm: Any) -> None:
        """Greedy and sampled, alone and all at once: plain decoding's tokens, and drafts that count."""
        self.check(llm, 0.0)
        spec_stats = llm.engine.stats.spec
        assert spec_stats.num_accepted_tokens / spec_stats.num_drafts > 0.3, spec_stats  # chance: a few in a million
        self.check(llm, 0.8)


@pytest.fixture(scope="module")
def whole(default_model: Path, chats: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(default_model, chats, tmp_path_factory.mktemp("gates"))


@pytest.mark.slow
@pytest.mark.parametrize("line", TRIED, ids=lambda line: line.name)
def test_every_trained_method_keeps_the_text(line: MethodLine, whole: Target) -> None:
    """Chains and trees."""
    assert line.gate
    gate = whole.home.find(line.gate) or whole.home.train(line.gate, steps=60 if line.gate == "dflash" else 35)
    if line.method == "mtp":  # the layer is part of its target
        whole.check_drafted(whole.load(gate.directory, speculative_config=line.speculative))
        return
    spec = line.speculative | {"model": str(gate.directory)}
    whole.check_drafted(whole.load(whole.directory, weights_of=whole.plain, speculative_config=spec))


@pytest.mark.slow
@pytest.mark.parametrize("line", SHIPPED, ids=lambda line: line.name)
def test_the_shipped_head_keeps_the_text(line: MethodLine, whole: Target) -> None:
    """Chains and trees, on the whole model that the head was trained for."""
    spec = line.speculative | {"model": str(SHIPPED_EAGLE3)}
    whole.check_drafted(whole.load(whole.directory, weights_of=whole.plain, speculative_config=spec))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ngram", "ngram_gpu", "suffix", "extract_hidden_states"])
def test_methods_without_weights_keep_the_text(method: str, whole: Target, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"speculative_config": next(x for x in all_lines() if x.name == method).speculative}
    if method == "extract_hidden_states":
        spec, transfer = saving(whole.plain.engine.target.num_layers, str(tmp_path))
        settings = {"speculative_config": spec, "kv_transfer_config": transfer}
    llm = whole.load(whole.directory, weights_of=whole.plain, **settings)
    for temperature in whole.texts:
        whole.check(llm, temperature)


def test_gates_are_trained_once_for_all_lines(toy_model: Path) -> None:
    lines = [line for line in all_lines() if line.gate == "mlp_speculator"]
    prompts = {"a": [[64, 65, 66]], "b": [[64, 65, 66], [70, 71]]}
    gates = find_gates(lines, toy_model, prompts, 10, retrain=False)
    assert list(gates) == ["mlp_speculator"] and len(gates["mlp_speculator"].prompts) == 2
    assert find_gates(lines, toy_model, {"a": [[70, 71]]}, 10, retrain=False) == gates
    made = (gates["mlp_speculator"].directory / "gate.json").stat().st_mtime_ns
    again = find_gates(lines, toy_model, prompts, 10, retrain=True)["mlp_speculator"]
    assert (again.directory / "gate.json").stat().st_mtime_ns > made
