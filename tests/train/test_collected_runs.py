"""`augury train --from`: beside what was served, held-out files and openings count, and one run has one directory."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from augury.cli import app
from augury.config.errors import ConfigError
from augury.config.fingerprint import fingerprint
from augury.model.tokenizer import Tokenizer
from augury.tools.train.alone import LOCK, alone_in
from augury.train.collected import read_collected
from augury.train.loop import STATE
from augury.train.turns import Turns

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
HELD = "what is x"


def chat(toy_model: Path, *turns: str) -> list[int]:
    roles = ["system" if turn.startswith("Be ") else "user" for turn in turns]
    talk = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)]
    return Tokenizer(toy_model).chat(talk, add_generation_prompt=True)


@pytest.fixture
def traffic(toy_model: Path, tmp_path: Path) -> Path:
    """60 answers, four of which are to a prompt that is held out."""
    folder = tmp_path / "traffic"
    folder.mkdir()
    (folder / "about.json").write_text(json.dumps({"target": "toy", "fingerprint": fingerprint(toy_model)}))
    prompts = [chat(toy_model, f"say {i}") for i in range(56)]
    prompts += [chat(toy_model, HELD), chat(toy_model, "Be brief.", HELD), Tokenizer(toy_model).encode(HELD)]
    prompts += [chat(toy_model, HELD, "and then?")]
    lines = [{"tokens": [*prompt, *range(70, 82)], "start": len(prompt), "sampled": False} for prompt in prompts]
    (folder / "everyone.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def trained(toy_model: Path, traffic: Path, *more: str) -> Result:
    words = ["train", "eagle3", "--target", str(toy_model), "--from", str(traffic), "--out", str(traffic / "run")]
    words += ["--no-gate", "--epochs", "1", "--batch", "8", "--every", "4", "--device", "cpu", "--json"]
    return CliRunner().invoke(app, [*words, "--answer-tokens", "12", *more], prog_name="augury")


def told(done: Result) -> dict[str, Any]:
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_held_out_files_and_openings_count_beside_what_was_served(
    toy_model: Path, traffic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held.txt"
    held.write_text(f"{HELD}\nwhat is y\n")
    written = [f"an opening of the target, {i}" for i in range(6)]
    monkeypatch.setattr("augury.tools.train.answers.openings", lambda llm, count, tick: written[:count])
    result = told(trained(toy_model, traffic, "--held-out", str(held), "--openings", "6"))
    assert list(result["best"]["length"]) == ["collected", "held"]
    assert result["texts"] == 56 - 3 + 6  # one in twenty is kept, and nothing that asks what is held out
    assert "an opening" in (traffic / "run" / f"openings-6-{fingerprint(toy_model)}.jsonl").read_text()


def test_prompts_that_are_held_out_are_found_in_any_conversation(toy_model: Path, traffic: Path) -> None:
    asks = Turns(Tokenizer(toy_model), [[{"role": "user", "content": HELD}]])
    for turns in ((HELD,), ("Be brief.", HELD), ("say 3", HELD), (HELD, "and then?")):
        assert asks.hold(chat(toy_model, *turns))
    for turns in ((f"{HELD}y",), (f"say {HELD}",), ("Be brief.", "say 3")):
        assert not asks.hold(chat(toy_model, *turns))
    corpus, kept = read_collected(traffic, toy_model, 200, asks.hold)
    assert len(corpus) + len(kept) == 56
    with pytest.raises(ConfigError, match="nearly every prompt is held out"):
        read_collected(traffic, toy_model, 200, lambda prompt: True)


def test_lines_that_hold_no_text_are_passed_over(toy_model: Path, traffic: Path) -> None:
    sound = [len(corpus) for corpus in read_collected(traffic, toy_model, 128)]
    odd = [5, "abcdefgh", ["a", "b", "c", "d"], [1, 2, 3.5, 4, 5], [1, 2, -3, 4, 5], [1, 2, 10**30, 4, 5]]
    lines = [json.dumps({"tokens": tokens, "start": 1, "sampled": True}) for tokens in odd]
    lines += [json.dumps({"tokens": [*range(9)], "start": start, "sampled": True}) for start in ("a", 1.5, -3, None)]
    (traffic / "others.jsonl").write_text("\n".join([*lines, "[" * 100_000, '{"tokens": [1, 2']))
    assert [len(corpus) for corpus in read_collected(traffic, toy_model, 128)] == sound


def test_a_prompt_that_is_asked_again_is_on_one_side(toy_model: Path, traffic: Path) -> None:
    """Its answers are alike; a length measured on what was learnt would say nothing."""
    (file,) = traffic.glob("*.jsonl")
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:6] * 50) + "\n")
    corpus, held = read_collected(traffic, toy_model, 200)
    asked, kept = ({tuple(part.text(i).tolist()) for i in range(len(part))} for part in (corpus, held))
    assert len(corpus) == 250 and len(held) == 1 and not asked & kept
    file.write_text("\n".join(lines[:1] * 50) + "\n")
    with pytest.raises(ConfigError, match="all 50 answers are to one prompt"):
        read_collected(traffic, toy_model, 200)


def test_a_file_called_collected_would_hide_what_was_served(toy_model: Path, traffic: Path, tmp_path: Path) -> None:
    (tmp_path / "collected.txt").write_text(HELD)
    done = trained(toy_model, traffic, "--held-out", str(tmp_path / "collected.txt"))
    assert "collected is what figures on --from are called" in f"{done.output} {done.exception}"


def test_a_run_remembers_what_it_began_with(toy_model: Path, traffic: Path, tmp_path: Path) -> None:
    told(trained(toy_model, traffic, "--out", str(tmp_path / "first")))
    begun = str(tmp_path / "first" / "best")
    first = told(trained(toy_model, traffic, "--init", begun))
    assert first["conditions"]["init"] == begun
    again = told(trained(toy_model, traffic, "--init", begun))
    assert again["conditions"]["init"] == begun and again["history"] == first["history"]
    other = str(tmp_path / "again" / "best")
    told(trained(toy_model, traffic, "--out", str(tmp_path / "again"), "--seed", "1"))
    for change in ([], ["--init", other]):
        done = trained(toy_model, traffic, *change)
        assert f"other settings (init: it began with {begun})" in f"{done.output} {done.exception}"
    broken = tmp_path / "again" / "best" / "model.safetensors"
    tensors = load_file(broken)
    tensors["fc.weight"][0, 0] = float("nan")
    save_file(tensors, broken)
    done = trained(toy_model, traffic, "--out", str(tmp_path / "third"), "--init", other)
    assert "best: fc.weight has NaN or infinite values" in f"{done.output} {done.exception}"
    done = trained(toy_model, traffic, "--out", str(tmp_path / "first"), "--init", begun)
    assert "other settings (init: it began with random weights)" in f"{done.output} {done.exception}"
    state = torch.load(tmp_path / "first" / STATE, weights_only=True)
    del state["origin"]  # as runs before it was kept have it
    torch.save(state, tmp_path / "first" / STATE)
    older = told(trained(toy_model, traffic, "--out", str(tmp_path / "first"), "--init", begun))
    assert older["conditions"]["init"] == "not recorded"


def test_a_second_run_in_one_directory_is_refused(toy_model: Path, traffic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with (out / LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = trained(toy_model, traffic, "--out", str(out))
        assert f"--out {out}: another training runs there" in f"{done.output} {done.exception}"
        assert [path.name for path in out.iterdir()] == [LOCK]  # nothing was begun
    with alone_in(out), pytest.raises(ConfigError, match="another training runs there"), alone_in(out):
        pass
    with alone_in(out):  # it ends with the run
        pass
