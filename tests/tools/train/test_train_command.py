"""`augury train` on a toy: from files of prompts to a drafter with its profile, and again from where it stood."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from augury.cli import app
from augury.config.errors import ConfigError
from augury.tools.shared.profile import read_profile
from augury.tools.train.command import WHAT
from augury.tools.train.options import device_of
from augury.tools.train.prompts import first_question, read_prompts
from augury.train.trainee import kinds

pytestmark = pytest.mark.usefixtures("one_thread_throughout")


@pytest.mark.parametrize(
    ("record", "asks"),
    [
        ("why?", "why?"),
        ({"question": "2+2?", "answer": "4"}, "2+2?"),
        ({"instruction": "Add.", "input": "1 2", "response": "3"}, "Add.\n\n1 2"),
        ({"turns": ["first", "second"]}, "first"),
        ({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "no"}]}, "hi"),
        ({"conversations": [{"from": "human", "value": "hi"}]}, "hi"),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "u"),
        ({"answer": "4"}, None),
        ({"messages": [{"role": "assistant", "content": "hi"}]}, None),
        ("  ", None),
        (3, None),
    ],
)
def test_what_a_record_asks(record: Any, asks: str | None) -> None:
    found = first_question(record)
    assert (found[-1]["content"] if found else None) == asks


def test_files_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "b.jsonl").write_text('{"prompt": "two"}\n{"prompt": "three"}\n')
    (tmp_path / "c.json").write_text('[{"question": "four"}]')
    (tmp_path / "d.csv").write_text("question,answer\nfive,5\n")
    found = read_prompts([tmp_path / name for name in ("a.txt", "b.jsonl", "c.json", "d.csv")])
    assert [messages[0]["content"] for messages in found] == ["one", "two", "three", "four", "five"]
    (tmp_path / "bad.json").write_text('[{"x": 1}]')
    for name, says in (("bad.json", "record 1: no field that asks"), ("none.txt", "No such file")):
        with pytest.raises(ConfigError, match=says):
            read_prompts([tmp_path / name])
    (tmp_path / "half.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b \\ud800"}\n')
    with pytest.raises(ConfigError, match="record 2: a lone surrogate"):
        read_prompts([tmp_path / "half.jsonl"])
    (tmp_path / "open.csv").write_text('question\n"never closed\nwhy?\n')
    with pytest.raises(ConfigError, match="not CSV"):
        read_prompts([tmp_path / "open.csv"])
    (tmp_path / "stray.csv").write_text('question,query\n"why?",a\n"the ""domain""?","x" AND y\n')  # out of other tools
    assert [talk[0]["content"] for talk in read_prompts([tmp_path / "stray.csv"])] == ["why?", 'the "domain"?']
    (tmp_path / "lines.csv").write_text('question\n"two\nlines"\n')
    assert read_prompts([tmp_path / "lines.csv"])[0][0]["content"] == "two\nlines"
    (tmp_path / "torn.jsonl").write_text('{"prompt": ')
    with pytest.raises(ConfigError, match="not JSON"):
        read_prompts([tmp_path / "torn.jsonl"])


def test_from_prompts_to_a_drafter(toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asked.txt").write_text("".join(f"what is {word}\n" for word in ("a", "bb", "ccc", "dd", "e", "held")))
    (tmp_path / "held.txt").write_text("what is held\nwhat is x\n")
    out = tmp_path / "run"
    words = ["train", "eagle3", "--target", str(toy_model), "--prompts", str(tmp_path / "asked.txt"), "--device", "cpu"]
    words += ["--held-out", str(tmp_path / "held.txt"), "--out", str(out), "--answer-tokens", "16", "--batch", "4"]
    words += ["--epochs", "8", "--every", "4", "--vocabulary", "200", "--json"]
    done = CliRunner().invoke(app, words, prog_name="augury")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["texts"] == 5 and result["gate"] > 0.8 and result["steps"] == 8  # what is held out is not trained on
    assert [line["step"] for line in result["history"]] == [4, 8]
    assert read_profile(out / "best" / "speculation_profile.json")["num_speculative_tokens"] == 3
    assert json.loads((out / "best" / "config.json").read_text())["draft_vocab_size"] == 200
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    report = (out / "report.html").read_text()
    best = result["best"]["length_at"]["held"]
    assert all(f">{length:.2f}<" in report for length in best) and "data:image/png;base64," in report
    assert "vocabulary: 200" in report and "http" not in re.sub(r"data:[^\"]*", "", report)

    monkeypatch.setattr("augury.tools.train.answers.LLM", lambda *_, **__: pytest.fail("the answers were made again"))
    again = CliRunner().invoke(app, words, prog_name="augury")
    repeated = json.loads(again.stdout)
    assert repeated["history"] == result["history"]  # nothing was left to do
    assert repeated["gate"] == result["gate"] == json.loads((out / "result.json").read_text())["gate"]
    shown = CliRunner().invoke(app, words[:-1], prog_name="augury")
    assert "acceptance length, K=3" in shown.stdout and "best at step" in shown.stdout


def test_the_help_names_every_kind() -> None:
    assert set(re.findall(r"[\w-]+", WHAT.partition(":")[2])) - {"or"} == set(kinds())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["hydra"], "augury train hydra: unknown; there are draft_model, pard, eagle, eagle3"),
        (["medusa", "--depth", "2"], "--k 3: medusa drafts --depth tokens at most; write --depth 3"),
        (["dflash", "--vocabulary", "100"], "--vocabulary 100: dflash uses the target's whole vocabulary"),
        (["eagle3", "--epochs", "0"], "--epochs 0"),
        (["eagle3", "--epochs", "inf"], "--epochs inf: write a finite number"),
        (["eagle3", "--minutes", "inf"], "--minutes inf: write a finite number"),
        (["eagle3", "--held-out", "asked.txt", "--held-prompts", "1"], "--prompts: every prompt is held out too"),
        (["eagle3", "--held-out", "held.jsonl"], "--held-out: two files are called held"),
        (["eagle3", "--held-out", "long.txt"], "held-long: no prompt fits beside --answer-tokens 12"),
        (["eagle3", "--longest", "16"], "--longest 16: all 2 texts of corpus are cut before their answer"),
        (["eagle3", "--answer-tokens", "100000"], "--answer-tokens 100000: the target reads "),
        (["eagle3", "--held-out", "absent.txt"], "--held-out absent.txt: No such file"),
        (["eagle3", "--epochs", "1e300"], "--epochs 1e+300: 10,000 at most"),
        (["eagle3", "--gpu", "H100"], "--gpu H100: only a --plan is for another GPU"),
        (["eagle3", "--answers", "asked.txt"], "--answers asked.txt: the directory cannot be created"),
        (["eagle3", "--vocabulary", "1000"], "--vocabulary 1000: the target has only 260 words"),
        (["mtp", "--layers", "3"], "--layers 3: mtp is not a stack of layers; draft_model, pard, medusa, dflash are"),
        (["draft_model", "--layers", "9"], "--layers 9: the target has 2, and a draft_model must have fewer"),
    ],
)
def test_wrong_options_are_named(
    change: list[str], says: str, toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asked.txt").write_text("what is a\nwhat is b\n")
    (tmp_path / "held.txt").write_text("what is c\n")
    (tmp_path / "long.txt").write_text("why? " * 2000)
    files = ["--prompts", str(tmp_path / "asked.txt"), "--held-out", str(tmp_path / "held.txt"), "--device", "cpu"]
    words = ["train", *files, "--out", str(tmp_path / "run"), "--target", str(toy_model), "--answer-tokens", "12"]
    done = CliRunner().invoke(app, [*words, *change], prog_name="augury")
    assert done.exit_code != 0 and says in f"{done.output} {done.exception}"


def test_an_unknown_kind_is_told_before_anything_else() -> None:
    for more in ([], ["--plan"], ["--epochs", "inf"]):
        done = CliRunner().invoke(app, ["train", "foo", *more], prog_name="augury")
        assert "augury train foo: unknown" in f"{done.output} {done.exception}"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told_before_anything_is_answered() -> None:
    with pytest.raises(ConfigError, match=r"--device cuda: torch sees no GPU"):
        device_of("cuda")
