"""Texts that --longest cuts before their answer are left out and counted; a run of nothing else is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from augury.config.errors import ConfigError
from augury.tools.train.answers import Maker
from augury.tools.train.options import TrainOptions
from augury.tools.train.texts import texts
from augury.train.corpus import Corpus

ANSWERS = {  # tokens of prompts and of their answers
    "corpus": [(5, 20), (16, 20), (14, 20), (13, 20), (13, 3)],
    "held-held": [(40, 20), (2, 20)],
}


def answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int) -> tuple[Corpus, Corpus]:
    """What is trained on, and what is held."""

    def corpus(self: Maker, name: str, *_: object) -> Corpus:
        return Corpus.of([([1] * a, [2] * b, a % 2 > 0) for a, b in ANSWERS[name]], {})

    monkeypatch.setattr(Maker, "corpus", corpus)
    files = [tmp_path / "asked.txt", tmp_path / "held.txt"]
    for path in files:
        path.write_text(f"what is {path.stem}\n")
    order = TrainOptions("eagle3", "toy", files[:1], files[1:], tmp_path, 20, 80, 0, 1, None, "cpu")
    trained, held = texts(order, tmp_path, longest, 0.0, lambda *progress: None)
    return trained, held["held"]


def test_they_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained, held = answered(tmp_path, monkeypatch, 16)
    assert trained.starts.tolist() == [5, 13, 13] and held.starts.tolist() == [2]
    assert trained.lengths.tolist() == [25, 33, 16] and trained.sampled.all()
    assert [trained.text(i).tolist() for i in range(3)] == [[1] * a + [2] * b for a, b in ((5, 20), (13, 20), (13, 3))]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "corpus: 2 of 5 texts are left out: --longest 16 cuts their answer." and len(lines) == 2
    assert [len(some) for some in answered(tmp_path, monkeypatch, 512)] == [5, 2] and not capsys.readouterr().err


@pytest.mark.parametrize(("longest", "which"), [(4, "all 5 texts of corpus"), (7, "all 5"), (8, "")])
def test_a_run_of_nothing_else_is_refused(
    longest: int, which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not which:
        assert len(answered(tmp_path, monkeypatch, longest)[0]) == 1
        return
    with pytest.raises(ConfigError, match=f"--longest {longest}: {which}"):
        answered(tmp_path, monkeypatch, longest)


def test_a_held_out_file_of_nothing_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, "held-held", [(40, 20)])
    with pytest.raises(ConfigError, match="--longest 16: all 1 texts of held-held are cut"):
        answered(tmp_path, monkeypatch, 16)
