"""Training on a GPU: a step that is replayed has the loss and the gradients of one that is run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from augury import LLM
from augury.model.checkpoint import read_config
from augury.train.batches import Teacher
from augury.train.corpus import answer
from augury.train.loop import Schedule, TrainingRun
from augury.train.trainee import Goal, kinds, layers_of, trainable, trainee_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
PROMPTS = [[65 + i % 26, 97 + i % 13, 65 + i % 7, 99] for i in range(24)]


@pytest.mark.parametrize("kind", list(kinds()))
def test_replayed_gradients_are_those_of_a_run(kind: str, toy_model: Path, tmp_path: Path) -> None:
    corpus = answer(LLM(str(toy_model), device="cpu", max_model_len=64), PROMPTS, 24)
    config, device = read_config(toy_model), torch.device("cuda")
    teacher = Teacher(toy_model, layers_of(kind, config), device, torch.bfloat16)
    words = torch.arange(config.vocab_size)
    trainee = trainee_of(kind)(Goal(kind, 3, 0), config, teacher, words)
    run = TrainingRun(trainee, teacher, Schedule(steps=30, batch=4, every=30, rate=3e-3), toy_model, tmp_path)
    for texts in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]):
        batch = teacher.batch(corpus, texts, 64)
        found = []
        for way in (run.gradients.add, run.gradients._run, run.gradients.add):  # recorded, run, replayed
            run.gradients.clear()
            loss = float(way(batch, 0.5))
            found.append((loss, [parameter.grad.clone() for parameter in trainable(trainee.module)]))
        for loss, gradients in found[1:]:
            assert loss == pytest.approx(found[0][0], rel=1e-3)
            for mine, theirs in zip(gradients, found[0][1], strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0.05, atol=2e-3 * float(theirs.abs().max() + 1e-6))
    run.train(corpus, {"itself": corpus})
    run.gradients.clear()
    assert float(run.gradients._run(batch, 0.5)) < 0.9 * found[0][0]  # it learns
