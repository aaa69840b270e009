"""One `--answers` directory of several targets: each is trained on its own openings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from augury.config.errors import ConfigError
from augury.config.fingerprint import fingerprint
from augury.tools.train.answers import Maker
from augury.tools.train.options import TrainOptions
from augury.train.corpus import Corpus

KEPT = "openings-2.jsonl"  # as earlier releases called them


def asked(target: Path, answers: Path) -> list[str]:
    """The openings of a run, a target's words being its directory's name."""
    files: dict[str, Any] = {"prompts": [], "held_out": [], "out": answers / "run", "answers": answers}
    sizes = {"answer_tokens": 8, "held_prompts": 1, "vocabulary": 0, "depth": 1, "layers": None}
    order = TrainOptions(method="eagle3", target=str(target), device="cpu", openings=2, **files, **sizes)
    maker = Maker(order, target, lambda *progress: None)
    maker._engine = lambda: target.name  # type: ignore[method-assign, assignment, return-value]
    return [messages[0]["content"] for messages in maker.openings()]


@pytest.fixture
def targets(toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two, whose configurations differ."""
    made = [tmp_path / "one", tmp_path / "two"]
    for directory in made:
        shutil.copytree(toy_model, directory)
    config = json.loads((made[1] / "config.json").read_text())
    (made[1] / "config.json").write_text(json.dumps(config | {"rope_theta": 20_000.0}))
    write = lambda llm, count, tick: [f"{llm} asks {i}" for i in range(count)]  # noqa: E731
    monkeypatch.setattr("augury.tools.train.answers.openings", write)
    return made


def test_each_target_is_given_its_own(targets: list[Path], tmp_path: Path) -> None:
    for _ in range(2):  # written, then read
        for target in targets:
            assert asked(target, tmp_path / "kept") == [f"{target.name} asks {i}" for i in range(2)]
    assert len(list((tmp_path / "kept").glob("openings-2-*.jsonl"))) == 2


def test_a_file_that_names_no_target_serves_the_one_that_answered_it(targets: list[Path], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / KEPT).write_text('"of earlier, 1"\n"of earlier, 2"\n')
    with pytest.raises(ConfigError, match=r"which target wrote it; if it was one, rename it to openings-2-.*\.jsonl"):
        asked(targets[0], kept)
    Corpus.of([([1, 2], [3, 4], False)], {"target": fingerprint(targets[0])}).save(kept / "corpus.safetensors")
    assert asked(targets[0], kept) == ["of earlier, 1", "of earlier, 2"]
    with pytest.raises(ConfigError, match="if it was two, rename it"):
        asked(targets[1], kept)
    (kept / KEPT).rename(kept / f"openings-2-{fingerprint(targets[1])}.jsonl")
    assert asked(targets[1], kept) == ["of earlier, 1", "of earlier, 2"]
    assert asked(targets[0], kept) == ["one asks 0", "one asks 1"]
