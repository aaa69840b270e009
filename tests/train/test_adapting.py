"""Adapting a drafter: training that goes on from a published one, and on what a server collected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from augury.cli import app
from augury.config.errors import ConfigError
from augury.config.fingerprint import fingerprint
from augury.config.installed import MARK
from augury.model.checkpoint import read_config
from augury.tools.train.run import chosen_words
from augury.train.batches import Teacher
from augury.train.collected import read_collected
from augury.train.corpus import Corpus
from augury.train.pairs import shake
from augury.train.trainee import Goal, Trainee, kinds, layers_of, trainee_of
from augury.train.warm_start import Origin


def teacher_of(toy_model: Path, kind: str) -> Teacher:
    return Teacher(toy_model, layers_of(kind, read_config(toy_model)), torch.device("cpu"), torch.float32)


def new_trainee(toy_model: Path, kind: str, teacher: Teacher, vocabulary: int = 0) -> Trainee:
    config = read_config(toy_model)
    words = torch.arange(vocabulary or config.vocab_size)
    return trainee_of(kind)(Goal(kind, 3, vocabulary), config, teacher, words)


@pytest.mark.parametrize("kind", list(kinds()))
def test_training_goes_on_from_a_published_drafter(kind: str, toy_model: Path, tmp_path: Path) -> None:
    teacher = teacher_of(toy_model, kind)
    own = 200 if trainee_of(kind).own_words and kind not in ("eagle", "mtp") else 0
    first, second = (new_trainee(toy_model, kind, teacher, own) for _ in range(2))
    shake(first.module, seed=7)
    first.export(toy_model, tmp_path)
    Origin(tmp_path, toy_model).give(second)
    for name, tensor in first.module.state_dict().items():
        if own or name not in first.optional:
            rows = len(first.words) if name in first.tables else None  # a last one may stand for all other words
            torch.testing.assert_close(second.module.state_dict()[name][:rows], tensor[:rows], rtol=8e-3, atol=1e-3)


def test_words_that_the_drafter_lacks_begin_as_they_would(toy_model: Path, tmp_path: Path) -> None:
    teacher = teacher_of(toy_model, "eagle3")
    few, many = new_trainee(toy_model, "eagle3", teacher, 100), new_trainee(toy_model, "eagle3", teacher, 200)
    fresh = many.head.detach().clone()
    shake(few.module, seed=7)
    few.export(toy_model, tmp_path)
    Origin(tmp_path, toy_model).give(many)
    assert torch.equal(many.head[:100], few.head)
    assert torch.equal(many.head[100:], fresh[100:])


def test_or_as_what_the_drafter_takes_other_words_for(toy_model: Path, tmp_path: Path) -> None:
    """Rows by chance beside trained ones would win every guess."""
    teacher = teacher_of(toy_model, "mlp_speculator")
    few, many = (new_trainee(toy_model, "mlp_speculator", teacher, count) for count in (100, 200))
    shake(few.module, seed=7)
    few.export(toy_model, tmp_path)
    Origin(tmp_path, toy_model).give(many)
    saved = load_file(tmp_path / "model.safetensors")
    assert torch.equal(many.module.emb.weight[100:], saved["emb.0.weight"][100].float().expand(101, -1))
    mean = saved["head.0.weight"].float().mean(0).bfloat16().float()
    assert torch.equal(many.head[100:], mean.expand(100, -1))


def test_another_kind_is_no_beginning(toy_model: Path, tmp_path: Path) -> None:
    new_trainee(toy_model, "eagle", teacher_of(toy_model, "eagle")).export(toy_model, tmp_path)
    with pytest.raises(ConfigError, match="not a drafter of kind eagle3"):
        Origin(tmp_path, toy_model).give(new_trainee(toy_model, "eagle3", teacher_of(toy_model, "eagle3")))
    with pytest.raises(ConfigError, match=r"no \*.safetensors"):
        Origin(tmp_path / "nowhere", toy_model)


def test_training_on_what_was_served(toy_model: Path, tmp_path: Path) -> None:
    """From the files of `serve --collect`: the same target, whole lines, answers that are not cut away."""
    mark = {"target": "toy", "fingerprint": fingerprint(toy_model)}
    (tmp_path / "about.json").write_text(json.dumps(mark))
    texts = [{"tokens": [65, 66, 67 + i, *range(70, 82)], "start": 3, "sampled": False} for i in range(60)]
    late = {"tokens": [65] * 50, "start": 45, "sampled": False}
    lines = "\n".join(json.dumps(line) for line in [*texts, late]) + '\n{"tokens": [1, 2'
    (tmp_path / "everyone.jsonl").write_text(lines)
    corpus, held = read_collected(tmp_path, toy_model, 40)
    assert (len(corpus), len(held)) == (57, 3)
    assert corpus.text(0).tolist() == texts[1]["tokens"] and int(corpus.starts[0]) == 3
    words = ["train", "eagle3", "--target", str(toy_model), "--from", str(tmp_path), "--out", str(tmp_path / "run")]
    words += ["--no-gate", "--epochs", "2", "--batch", "8", "--every", "10", "--device", "cpu", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout)["best"]["length"]) == ["collected"]
    (tmp_path / "about.json").write_text(json.dumps(mark | {"fingerprint": "another", "target": "other"}))
    with pytest.raises(ConfigError, match="holds answers of other"):
        read_collected(tmp_path, toy_model, 40)


def test_a_drafter_keeps_its_words_where_it_goes_on(toy_model: Path, tmp_path: Path) -> None:
    """A small corpus says few of them, and what is dropped cannot be guessed any more."""
    config, teacher = read_config(toy_model), teacher_of(toy_model, "eagle3")
    own = torch.arange(100, 200)
    trainee_of("eagle3")(Goal("eagle3", 3, len(own)), config, teacher, own).export(toy_model, tmp_path)
    origin = Origin(tmp_path, toy_model)
    corpus = Corpus.of([([1], [3, 3, 5, 5, 5, 150, 150, 160], False)], {})
    more = chosen_words(corpus, config, 102, origin)
    assert more.tolist() == [3, 5, *own.tolist()]
    assert chosen_words(corpus, config, 2, origin).tolist() == [150, 160]
    assert chosen_words(corpus, config, 2, None).tolist() == [3, 5]


def test_a_drafter_of_another_target_is_no_beginning(toy_model: Path, tmp_path: Path) -> None:
    new_trainee(toy_model, "eagle3", teacher_of(toy_model, "eagle3")).export(toy_model, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), MARK: {"name": "another", "fingerprint": "0"}}))
    with pytest.raises(ConfigError, match="trained for another"):
        Origin(tmp_path, toy_model)
    file.write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        Origin(tmp_path, toy_model)
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ConfigError, match="cannot be read"):
        Origin(tmp_path, toy_model)
