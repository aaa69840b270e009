"""A drafter with fewer words: the rows of its tables that the target says most often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError
from augury.model.checkpoint import read_config
from augury.model.errors import ModelError
from augury.model.heads.dflash import DFlash
from augury.model.heads.dflash_config import BORROWED
from augury.model.load import load_target
from augury.train.batches import Teacher
from augury.train.corpus import Corpus, answer
from augury.train.speculators import as_speculator
from augury.train.trainee import Goal, layers_of, trainee_of
from augury.train.trim import answers_of, trim

PROMPTS = [[65 + i % 26, 97 + i % 13, 65 + i % 7, 99] for i in range(8)]


@pytest.fixture(scope="module")
def corpus(toy_model: Path) -> Corpus:
    return answer(LLM(str(toy_model), device="cpu", max_model_len=64), PROMPTS, 24)


@pytest.fixture(params=["eagle3", "mlp_speculator"])
def drafter(request: pytest.FixtureRequest, toy_model: Path, tmp_path: Path) -> Path:
    config, method = read_config(toy_model), request.param
    teacher = Teacher(toy_model, layers_of(method, config), torch.device("cpu"), torch.float32)
    made = trainee_of(method)(Goal(method, 2, 128), config, teacher, torch.arange(0, 256, 2))
    made.export(toy_model, tmp_path / method)
    return tmp_path / method


def test_the_words_said_most_often_stay(drafter: Path, corpus: Corpus, toy_model: Path) -> None:
    out = drafter.parent / "small"
    told = trim(drafter, corpus, 48, out)
    before, after = load_file(drafter / "model.safetensors"), load_file(out / "model.safetensors")
    words, kept = torch.arange(128) + before["d2t"], torch.arange(48) + after["d2t"]
    often = torch.bincount(answers_of(corpus), minlength=read_config(toy_model).vocab_size)
    left = words[~torch.isin(words, kept)]
    assert torch.isin(kept, words).all() and often[kept].min() >= often[left].max()
    assert told["words"] == 48 and told["before"] == 128
    assert "t2d" not in before or torch.equal(after["t2d"].nonzero()[:, 0], kept)
    _check_rows(before, after, torch.isin(words, kept))
    spec = {"method": drafter.name, "model": str(out), "num_speculative_tokens": 2}
    assert _texts(toy_model, None) == _texts(toy_model, spec)


def test_a_head_that_guesses_by_the_targets_matrix_keeps_some_of_its_lines(
    corpus: Corpus, toy_model: Path, tmp_path: Path
) -> None:
    """The file gains a list of words and no matrix; its guesses are those of the whole head among these words."""
    config = read_config(toy_model)
    teacher = Teacher(toy_model, layers_of("dflash", config), torch.device("cpu"), torch.float32)
    made = trainee_of("dflash")(Goal("dflash", 3), config, teacher, torch.arange(config.vocab_size))
    made.export(toy_model, tmp_path / "whole")
    assert trim(tmp_path / "whole", corpus, 48, tmp_path / "few")["before"] == config.vocab_size
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "few"))
    words = torch.arange(48) + after.pop("d2t")
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    target = load_target(toy_model, "float32", "cpu", 64)
    heads = [DFlash.load(tmp_path / name, target, torch.float32, 64) for name in ("whole", "few")]
    hidden = torch.randn(5, config.hidden_size)
    whole, few = (head.widened(head.scores(hidden)) for head in heads)
    torch.testing.assert_close(few[:, words], whole[:, words])
    assert few.isinf().sum() == 5 * (config.vocab_size - 48)
    spec = {"method": "dflash", "model": str(tmp_path / "few")}
    assert _texts(toy_model, None) == _texts(toy_model, spec)
    for name in ("whole", "few"):  # elsewhere it has all words
        as_speculator(tmp_path / name, str(toy_model), 3, tmp_path / f"{name} exported")
    exported = [tmp_path / f"{name} exported" for name in ("whole", "few")]
    assert len({(path / "model.safetensors").read_bytes() for path in exported}) == 1
    one, other = (json.loads((path / "config.json").read_text()) for path in exported)
    assert one == other
    config_file = tmp_path / "few" / "config.json"
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | {BORROWED: False}))
    with pytest.raises(ModelError, match=r"lm_head\.weight"):  # as of any file that lost its matrix
        DFlash.load(tmp_path / "few", target, torch.float32, 64)


def _texts(toy_model: Path, spec: dict[str, Any] | None) -> list[int]:
    llm = LLM(str(toy_model), device="cpu", max_model_len=64, speculative_config=spec)
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    (output,) = llm.generate([{"prompt_token_ids": PROMPTS[0]}], params, use_tqdm=False)
    return list(output.outputs[0].token_ids)


def _check_rows(before: dict[str, Tensor], after: dict[str, Tensor], stay: Tensor) -> None:
    """Tables keep the rows of their words, and one for all other words where they have it; the rest is as it was."""
    tables = {name for name in before if name.startswith(("lm_head", "head.", "emb."))}
    for name in before.keys() - {"d2t", "t2d"}:
        rows = torch.cat([stay, stay.new_ones(len(before[name]) - len(stay))]) if name in tables else slice(None)
        assert torch.equal(after[name], before[name][rows])
    assert tables


def test_a_damaged_drafter_is_told_of(drafter: Path, corpus: Corpus, tmp_path: Path) -> None:
    weights = drafter / "model.safetensors"
    tensors = load_file(weights)
    save_file(tensors | {"d2t": tensors["d2t"] + 100_000}, weights)
    with pytest.raises(ConfigError, match="d2t points outside the target's"):
        trim(drafter, corpus, 16, tmp_path / "x")
    weights.write_bytes(weights.read_bytes()[:-100])
    for run in (lambda: trim(drafter, corpus, 16, tmp_path / "x"), lambda: as_speculator(drafter, "x", 3, tmp_path)):
        with pytest.raises(ConfigError, match="not a readable drafter"):
            run()
    save_file(tensors, weights)
    (drafter / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match="is not a JSON object"):
        trim(drafter, corpus, 16, tmp_path / "x")


def test_what_cannot_be_trimmed_is_told(drafter: Path, corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--words 128: .* has 128; write fewer"):
        trim(drafter, corpus, 128, tmp_path / "x")
    with pytest.raises(ConfigError, match="not a readable drafter"):
        trim(tmp_path / "nowhere", corpus, 16, tmp_path / "x")
    (tmp_path / "bytes").write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="is not a corpus of this version"):
        Corpus.load(tmp_path / "bytes")
    config = json.loads((drafter / "config.json").read_text())
    del config["vocab_size"]  # as the speculators format has it
    (drafter / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"in the speculators format; trim the drafter in best/"):
        trim(drafter, corpus, 16, tmp_path / "x")
