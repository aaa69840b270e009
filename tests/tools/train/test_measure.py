"""`augury drafter measure` on a toy: figures by setting, held to what an engine counts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from augury import LLM
from augury.cli import app
from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.tools.train.measured import MeasuredWith, effective, notes, shaped, too_long

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
ASKED = ("what is a", "what is bb", "and c")


def test_rules_differ_for_sampled_chains_alone() -> None:
    every = [
        MeasuredWith(3, nodes, heat, rule) for nodes in (0, 8) for heat in (0, 0.8) for rule in ("coupled", "block")
    ]
    found = effective(every, {"method": "eagle3"})
    assert found == [
        MeasuredWith(3, 0, 0, "coupled"),
        MeasuredWith(3, 0, 0.8, "coupled"),
        MeasuredWith(3, 0, 0.8, "block"),
        MeasuredWith(3, 8, 0, "coupled"),
        MeasuredWith(3, 8, 0.8, "coupled"),
    ]
    assert {one.nodes for one in effective(every, {"method": "draft_model", "parallel_drafting": True})} == {0}
    with pytest.raises(ConfigError, match="drafts chains alone"):
        effective([MeasuredWith(3, 8, 0, "coupled")], {"method": "ngram"})


def test_drafts_of_sampled_answers_are_drawn() -> None:
    assert shaped({"method": "eagle3"}, 3, 0, "block", 4)["draft_sample_method"] == "probabilistic"
    given = {"method": "eagle3", "draft_sample_method": "greedy"}
    assert shaped(given, 3, 0, "block", 4)["draft_sample_method"] == "greedy"
    assert shaped(given, 3, 16, "coupled", 4)["tree"] == {"max_nodes": 16, "top_k": 4}
    assert "draft_sample_method" not in shaped({"method": "medusa"}, 3, 0, "coupled", 4)


def test_lengths_are_those_that_the_engine_counts(toy_model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(ASKED))
    (tmp_path / "b.txt").write_text(ASKED[0])
    spec = {"method": "draft_model", "model": str(toy_model)}
    words = ["drafter", "measure", "-sc", json.dumps(spec), "--target", str(toy_model), "--device", "cpu"]
    words += ["--prompts", str(tmp_path / "a.txt"), "--prompts", str(tmp_path / "b.txt"), "--max-tokens", "13"]
    done = CliRunner().invoke(app, [*words, "--temperature", "0", "--temperature", "0.8", "--k", "2", "--json"])
    assert done.exit_code == 0, done.output
    greedy, sampled = json.loads(done.stdout)["lengths"]
    assert greedy["files"]["b"]["length"] == 3.0  # the target drafts for itself: all is accepted
    assert sampled["drafts"] == "drawn" and sampled["files"]["a"]["answers"] == 3
    engine = LLM(str(toy_model), device="cpu", speculative_config=shaped(spec, 2, 0, "coupled", 4))
    prompts = [engine.tokenizer.chat([{"role": "user", "content": text}], add_generation_prompt=True) for text in ASKED]
    for seed, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.8, seed=seed, max_tokens=13)
        engine.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    stats = engine.engine.stats.spec
    assert sampled["files"]["a"]["drafts"] == stats.num_drafts
    assert sampled["files"]["a"]["length"] == pytest.approx(stats.acceptance_length, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["-sc", '{"method": "ngram", "num_speculative_tokens": 3}'], "'num_speculative_tokens' is what is measured"),
        (["-sc", '{"method": "ngram"}', "--rule", "typical"], "--rule typical: unknown"),
        (["-sc", '{"method": "ngram"}', "--batch", "65537"], "less than or equal to 65536"),
    ],
)
def test_wrong_words_are_named(change: list[str], says: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    done = CliRunner().invoke(app, ["drafter", "measure", *change, "--prompts", str(tmp_path / "a.txt")])
    assert done.exit_code != 0 and says in f"{done.output} {done.exception}"


def measured_of(toy_model: Path, prompts: Path, *more: str) -> Result:
    spec = {"method": "draft_model", "model": str(toy_model)}
    words = ["drafter", "measure", "-sc", json.dumps(spec), "--target", str(toy_model), "--device", "cpu"]
    return CliRunner().invoke(app, [*words, "--prompts", str(prompts), "--max-tokens", "4", *more])


def test_prompts_that_are_too_long_are_told(toy_model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "a.txt"
    prompts.write_text("why? " * 2000)
    done = measured_of(toy_model, prompts)
    assert re.search(r"--prompts a: its shortest prompt has \d+ tokens, and beside --max-tokens 4", str(done.output))
    prompts.write_text("why? " * 2000 + "\nwhat is a\n")
    shown = measured_of(toy_model, prompts, "--most", "2").output
    assert "a: 1 of 2 prompts are too long and were left out" in shown
    assert "no room is left for a prompt" in too_long("a", 9, 0, 512)


def test_trees_that_cannot_grow_are_told() -> None:
    settings, line = [MeasuredWith(3, nodes, 0, "coupled") for nodes in (0, 8)], {"files": {}}
    parallel = {"method": "eagle3", "parallel_drafting": "yes"}
    assert notes(settings, parallel, [line]) == ["--tree 8: eagle3 drafts chains alone with parallel_drafting."]
    assert notes(settings, {"method": "ngram"}, [line]) == ["--tree 8: ngram drafts chains alone."]
    assert {one.nodes for one in effective(settings, parallel)} == {0}
    for spec in ({"method": "eagle3"}, {"method": "eagle3", "parallel_drafting": "no"}):
        assert notes(settings, spec, [line]) == [] and {one.nodes for one in effective(settings, spec)} == {0, 8}
    with pytest.raises(ConfigError, match="--tree: eagle3 drafts chains alone with parallel_drafting; write --tree 0"):
        effective(settings[1:], parallel)


def test_what_an_installed_drafter_adds_does_not_make_k_adapt() -> None:
    found = {"method": "eagle3", "model": "x", "num_speculative_tokens": 3, "adaptive": True}
    made = shaped(found, 5, 0, "coupled", 4)
    assert "adaptive" not in made and made["num_speculative_tokens"] == 5
