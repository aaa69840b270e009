"""Validation at a temperature: chances against an engine that draws, and expected steps against rolled dice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from augury import LLM
from augury.model.checkpoint import read_config
from augury.train.batches import Teacher
from augury.train.corpus import Corpus, answer
from augury.train.loop import BEST, Schedule, TrainingRun
from augury.train.trainee import Goal, Trainee, kinds, layers_of, trainee_of
from augury.train.validate import chances, measure, walk

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
HEAT = 0.8
PROMPTS = [[65 + i % 26, 97 + i % 13, 65 + i % 7, 99] for i in range(40)]
LESSON = Schedule(steps=40, batch=8, longest=40, every=40, rate=5e-3, temperature=HEAT)


@pytest.fixture(scope="module")
def drawn(toy_model: Path) -> Corpus:
    llm = LLM(str(toy_model), device="cpu", max_model_len=64)
    return answer(llm, PROMPTS, 24, HEAT, 1.0)


@pytest.fixture(scope="module")
def other(toy_model: Path) -> Corpus:
    """The same prompts with other seeds: what was learnt by heart does not count."""
    return answer(LLM(str(toy_model), device="cpu", max_model_len=64), PROMPTS[::-1], 24, HEAT, 1.0)


def teacher_of(toy_model: Path, kind: str) -> Teacher:
    return Teacher(toy_model, layers_of(kind, read_config(toy_model)), torch.device("cpu"), torch.float32)


def new_trainee(toy_model: Path, kind: str, teacher: Teacher, vocabulary: int = 0) -> Trainee:
    config = read_config(toy_model)
    return trainee_of(kind)(Goal(kind, 3, vocabulary), config, teacher, torch.arange(vocabulary or config.vocab_size))


def test_expected_steps_are_the_mean_of_many_walks() -> None:
    dice = Random(0)
    lines = [[dice.random() for _ in range(3)] for _ in range(20)]
    total, rounds = [0] * 4, 4000
    for _ in range(rounds):
        at = 3
        while at < 19:
            right = next((i for i, chance in enumerate(lines[at - 1]) if dice.random() >= chance), 3)
            total[right] += 1
            at += right + 1
    assert walk(lines, 3, 20) == pytest.approx([count / rounds for count in total], abs=0.1)


@torch.no_grad()
def test_chances_are_what_the_two_distributions_share(toy_model: Path, drawn: Corpus) -> None:
    """Word for word, with a drafter that lacks half of the words."""
    teacher = teacher_of(toy_model, "medusa")
    trainee, batch = new_trainee(toy_model, "medusa", teacher, 130), teacher.batch(drawn, [0, 1, 2], 40)
    found, states = chances(trainee, teacher, batch, 2, HEAT), trainee.behind_text(batch, 2)
    for text, row, guess in [(0, 4, 0), (1, 7, 1), (2, 12, 0), (0, 9, 1)]:
        token = int(batch.tokens[text, row + 2 + guess])
        p = (batch.normed[text, row + 1 + guess] @ teacher.head.T / HEAT).softmax(0)[token]
        q = (trainee.logits(states[guess][text, row]) / HEAT).softmax(0)
        chance = min(1.0, float(q[token] / p)) if token < 130 else 0.0
        assert float(found[text, row, guess]) == pytest.approx(chance, rel=1e-4)
    assert found[0, int(batch.lengths[0]) - 2].sum() == 0  # nobody knows what would follow the text


@pytest.mark.parametrize("kind", ["eagle3", "draft_model", "dflash"])  # each knows its earlier guesses in its own way
def test_the_length_is_that_of_sampled_drafts(
    kind: str, toy_model: Path, drawn: Corpus, other: Corpus, tmp_path: Path
) -> None:
    """Served with probabilistic drafts under rejection sampling, on many draws."""
    teacher = teacher_of(toy_model, kind)
    run = TrainingRun(new_trainee(toy_model, kind, teacher), teacher, LESSON, toy_model, tmp_path)
    run.train(drawn, {"same": drawn})
    (simulated,) = run.measure({"other": other}).values()
    spec: dict[str, Any] = {"model": str(tmp_path / BEST), "num_speculative_tokens": 3, **kinds()[kind].settings}
    spec |= {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
    served = LLM(str(toy_model), device="cpu", max_model_len=64, speculative_config=spec)
    answer(served, PROMPTS, 24, HEAT, 1.0)
    stats = served.engine.stats.spec
    assert 1 + stats.num_accepted_tokens / stats.num_drafts == pytest.approx(simulated.length, abs=0.12)
    assert simulated.length > 1.1


def test_greedy_and_sampled_are_two_measures(toy_model: Path, drawn: Corpus) -> None:
    """A drafter that is the target accepts all that is drawn, though its likeliest tokens are not the text."""
    teacher = teacher_of(toy_model, "draft_model")
    trainee = new_trainee(toy_model, "draft_model", teacher)
    trainee.module = teacher.model
    sampled, greedy = (measure(trainee, teacher, drawn, 3, 8, 40, heat) for heat in (HEAT, 0.0))
    assert sampled.by_position[0] > 0.9 and greedy.length < sampled.length
    assert replace(LESSON).temperature == HEAT


def test_a_text_that_is_cut_before_its_answer_has_no_steps() -> None:
    lines = [[1.0, 1.0]] * 7
    assert walk(lines, 87, 8) == walk(lines, 8, 8) == [0.0, 0.0, 0.0]
