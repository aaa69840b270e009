"""Where a run stands, in a file that a full disk or a lost machine may leave in pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from augury.config.errors import ConfigError
from augury.model.checkpoint import read_config
from augury.train.batches import Teacher
from augury.train.loop import STATE, Schedule, TrainingRun
from augury.train.trainee import Goal, layers_of, trainee_of


@pytest.fixture
def run(toy_model: Path, tmp_path: Path) -> TrainingRun:
    config, device = read_config(toy_model), torch.device("cpu")
    teacher = Teacher(toy_model, layers_of("medusa", config), device, torch.float32)
    trainee = trainee_of("medusa")(Goal("medusa", 3, 0), config, teacher, torch.arange(config.vocab_size))
    made = TrainingRun(trainee, teacher, Schedule(steps=1), toy_model, tmp_path / "run")
    made._save()
    return made


def test_a_full_disk_is_told_and_leaves_the_state_before(run: TrainingRun, monkeypatch: pytest.MonkeyPatch) -> None:
    half = run.directory / f"{STATE}.new"

    def full(*_: object) -> None:
        half.write_bytes(b"half")
        raise RuntimeError("unexpected pos 64 vs 0")

    with monkeypatch.context() as patch, pytest.raises(ConfigError, match=r"cannot be written, .* MB are free"):
        patch.setattr(torch, "save", full)
        run._save()
    assert not half.exists() and run.resume()


def test_a_damaged_state_is_told_by_name(run: TrainingRun) -> None:
    state = run.directory / STATE
    whole = state.read_bytes()
    for damaged in (whole[:-2_000], b"", b"no state at all"):
        state.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"state\.pt is damaged .*remove it to start over"):
            run.resume()
    torch.save({"weights": []}, state)
    with pytest.raises(ConfigError, match="no optimiser, progress, schedule"):
        run.resume()
