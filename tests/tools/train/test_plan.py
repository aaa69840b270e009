"""A plan of a training: it grows with the work, agrees with the runs it rests on, and says what it rests on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from augury.cli import app
from augury.methods.registry import kinds
from augury.tools.advise.gpus import find_gpu
from augury.tools.advise.shape import ModelShape, shape_of
from augury.tools.advise.target import find_target
from augury.tools.knowledge.training import training_facts
from augury.tools.train.plan import TrainingWork, plan
from augury.tools.train.planned import _span

WORK = TrainingWork(texts=31_500, answer_tokens=256, longest=512, batch=64, epochs=5.5, depth=7, words=16_384, layers=2)
SMALL = ModelShape(
    name="SmolLM2-135M",
    layers=30,
    hidden=576,
    vocab=49_152,
    every_row=106_000_000,
    experts=0,
    experts_used=0,
    expert=0,
    tied=True,
    kv_heads=3,
    attention_width=576,
    cache_values=11_520,
    window_values=0,
    window=0,
    weight_bytes=2.0,
    fp8=False,
)


def test_it_agrees_with_the_run_it_was_read_off() -> None:
    """31,500 texts took 3.7 minutes to answer and 13.7 steps a second to learn, on one H200."""
    found = plan("eagle3", SMALL, find_gpu("H200"), WORK)
    assert 3.0 < found.answer_minutes < 6.0
    fast, slow = found.training_minutes
    measured = found.steps / 13.7 / 60
    assert fast < measured < 1.15 * slow
    assert found.lengths["mt_bench"] == pytest.approx(2.33, abs=0.02)
    assert found.fits


@pytest.mark.parametrize("method", [one.method for one in training_facts().methods])
def test_more_work_takes_longer_and_buys_no_less(method: str) -> None:
    target, gpu = shape_of(find_target("llama-3.1-8b")), find_gpu("H100")
    small, large = (plan(method, target, gpu, replace(WORK, epochs=epochs)) for epochs in (1, 4))
    assert small.training_minutes[1] < large.training_minutes[1] and small.steps < large.steps
    assert small.training_minutes[0] < small.training_minutes[1]
    assert all(length <= large.lengths[name] <= large.k + 1 for name, length in small.lengths.items())
    assert small.answer_minutes == large.answer_minutes


def test_curves_never_fall() -> None:
    measured = [one for one in training_facts().methods if one.curve]
    assert len(measured) > 7
    for one in measured:
        found = [one.lengths(steps).get("mt_bench", 1.0) for steps in (1, 300, 700, 2_000, 6_000, 10**6)]
        assert found == sorted(found) and found[0] == 1.0 < found[-1]


def test_a_plan_knows_the_lengths_of_the_shipped_block_drafter() -> None:
    """Its curve goes as far as the longest run, and stays there."""
    long = plan("dflash", SMALL, find_gpu("H200"), replace(WORK, epochs=20)).lengths
    assert long == {"mt_bench": 2.10, "humaneval": 2.59, "gsm8k_test": 2.84}


@pytest.mark.parametrize(
    ("fast", "slow", "says"),
    [
        (0.4, 1.3, "a minute"),
        (1.2, 1.4, "a minute"),
        (0.4, 1.6, "a minute to 2 minutes"),
        (80, 95, "80 minutes to 1.6 hours"),
    ],
)
def test_spans_of_time_read_well(fast: float, slow: float, says: str) -> None:
    assert _span(fast, slow) == says


def test_what_does_not_fit_is_said() -> None:
    found = plan("eagle3", shape_of(find_target("llama-3.1-8b")), find_gpu("T4"), WORK)
    assert not found.fits and found.memory_gb > 16


def test_every_kind_can_be_planned() -> None:
    assert {one.method for one in training_facts().methods} == set(kinds())
    long = replace(WORK, epochs=20)
    found = plan("pard", SMALL, find_gpu("H200"), long).lengths
    assert found == {"mt_bench": 1.60, "humaneval": 1.82, "gsm8k_test": 2.19}


def test_a_kind_without_figures_says_so() -> None:
    found = plan("eagle", SMALL, find_gpu("H200"), WORK)
    assert not found.lengths and found.basis[0].startswith("lengths: no eagle head of any target")
    assert found.training_minutes[1] > 0 and found.memory_gb > 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["hydra"], "augury train hydra: unknown"),
        (["eagle3", "--epochs", "0"], "--epochs 0: nothing would be trained"),
        (["eagle3", "--vocabulary", "200000"], "--vocabulary 200000: the target has only 128256 words"),
        (["pard", "--layers", "32"], "--layers 32: the target has 32, and a pard must have fewer"),
        (["eagle3", "--layers", "2"], "--layers 2: eagle3 is not a stack of layers"),
        (["medusa", "--k", "7"], "--k 7: medusa drafts --depth tokens at most"),
        (["dflash", "--vocabulary", "100"], "--vocabulary 100: dflash uses the target's whole vocabulary"),
        (["eagle3", "--held-out", "absent.txt"], "--held-out absent.txt: No such file"),
        (["eagle3", "--from", "absent"], "--from absent: no answers there"),
        (["eagle3", "--epochs", "1e300"], "--epochs 1e+300"),
    ],
)
def test_a_plan_refuses_what_the_training_would(words: list[str], says: str) -> None:
    asked = ["train", words[0], "--plan", "--target", "llama-3.1-8b", "--openings", "100", *words[1:]]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code != 0 and says in f"{done.output} {done.exception}"


def test_the_command_counts_prompts_and_trains_nothing(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one question\nanother\n")
    words = [
        "train",
        "eagle3",
        "--plan",
        "--target",
        "llama-3.1-8b",
        "--prompts",
        str(tmp_path / "p.txt"),
        "--openings",
        "998",
    ]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["texts"] == 1000 and said["gpu"] == "H200" and said["basis"]
    shown = CliRunner().invoke(app, words)
    assert "1,000, about 0.3 million tokens" in shown.output and "SmolLM2-135M-Instruct" in shown.output
    assert [path.name for path in tmp_path.iterdir()] == ["p.txt"]
    few = CliRunner().invoke(app, [*words[:-1], "8"])
    assert "10, about 2,630 tokens" in few.output and "minute to" not in few.output


def test_a_batch_is_no_larger_than_there_are_texts() -> None:
    """Steps of 64 texts are what lengths are measured by; a batch of more texts than there are is a step over all."""
    few = replace(WORK, texts=1_000)
    whole, more = (plan("eagle3", SMALL, find_gpu("H200"), replace(few, batch=batch)) for batch in (1_000, 100_000))
    assert more == whole and not more.lengths


def test_minutes_end_a_training() -> None:
    free = plan("eagle3", SMALL, find_gpu("H200"), WORK)
    short = plan("eagle3", SMALL, find_gpu("H200"), replace(WORK, minutes=1.0))
    assert short.training_minutes[1] <= 1.0 < free.training_minutes[1] and 0 < short.steps < free.steps
    assert short.lengths["mt_bench"] < free.lengths["mt_bench"] and "--minutes 1" in short.basis[0]


def test_served_answers_are_counted_and_held_out_prompts_are_not(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one question\nanother\n")
    (tmp_path / "h.txt").write_text("another\n")
    served = [json.dumps({"tokens": [i, *range(20)], "start": 4, "sampled": False}) for i in range(40)]
    (tmp_path / "served.jsonl").write_text("\n".join(served) + "\n")
    words = ["train", "eagle3", "--plan", "--target", "llama-3.1-8b", "--from", str(tmp_path), "--json"]
    alone = CliRunner().invoke(app, words)
    files = ["--prompts", str(tmp_path / "p.txt"), "--held-out", str(tmp_path / "h.txt")]
    mixed = CliRunner().invoke(app, [*words, *files])
    assert json.loads(alone.stdout)["texts"] == 38 and json.loads(alone.stdout)["answer_minutes"] == 0.0
    assert json.loads(mixed.stdout)["texts"] == 39 and json.loads(mixed.stdout)["answer_minutes"] > 0.0


def test_a_plan_needs_prompts(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["train", "eagle3", "--plan", "--target", "llama-3.1-8b"])
    assert done.exit_code != 0 and "--prompts, --openings or --from" in str(done.output) + str(done.exception)


def test_a_plan_of_prompts_that_are_all_held_out_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("what is a")
    words = ["train", "eagle3", "--plan", "--target", "llama-3.1-8b", "--openings", "5"]
    for option in ("--prompts", "--held-out"):
        words += [option, str(tmp_path / "a.txt")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0 and "--prompts: every prompt is held out too" in f"{done.output} {done.exception}"
