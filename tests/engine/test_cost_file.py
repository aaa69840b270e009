"""Costs of passes are kept between starts, for the same machine and model alone, and never in anybody's way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from augury import LLM
from augury.engine import adaptive
from augury.engine.cost_file import remembered

POINTS = {1: 0.5, 2: 0.75}


class Stopwatch:
    """Counts how often something is measured."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> dict[int, float]:
        """What is measured."""
        self.asked += 1
        return dict(POINTS)


def test_measured_once(tmp_path: Path) -> None:
    measure, path = Stopwatch(), tmp_path / "costs" / "a.json"
    assert [remembered(path, [1, 2], measure) for _ in range(3)] == [POINTS] * 3
    assert measure.asked == 1


@pytest.mark.parametrize(
    "left",
    ["", "{", "[]", "3", '{"1": "x", "2": 1}', '{"1": -1, "2": 1}', '{"1": NaN, "2": 1}', '{"1": 1}', "é" * 70_000],
)
def test_what_cannot_be_used_is_measured_again(tmp_path: Path, left: str) -> None:
    measure, path = Stopwatch(), tmp_path / "a.json"
    path.write_text(left)
    assert remembered(path, [1, 2], measure) == remembered(path, [1, 2], measure) == POINTS
    assert measure.asked == 1


def test_a_place_that_cannot_be_written_is_no_matter(tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("a file where a folder should be")
    measure = Stopwatch()
    assert remembered(tmp_path / "costs" / "a.json", [1, 2], measure) == remembered(None, [1, 2], measure) == POINTS
    assert measure.asked == 2


def test_the_second_start_measures_nothing(toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: list[int] = []
    monkeypatch.setattr(adaptive, "measure_rows", lambda run, sizes: asked.append(1) or dict.fromkeys(sizes, 0.01))  # type: ignore[func-returns-value]

    def start(**options: Any) -> None:
        spec = {"method": "ngram", "num_speculative_tokens": "auto"}
        LLM(str(toy_model), max_model_len=64, max_num_seqs=2, speculative_config=spec, **options)

    start()
    start()
    assert len(asked) == 1
    start(dtype="bfloat16")
    assert len(asked) == 2 and len(list((tmp_path / "augury" / "costs").iterdir())) == 2
