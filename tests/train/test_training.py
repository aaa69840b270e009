"""Training for real, on a toy: the batches, the unrolling against that of the gates, validation, and a kill."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from augury import LLM
from augury.config.errors import ConfigError
from augury.model.checkpoint import read_config
from augury.train import gate
from augury.train.batches import Order, Teacher
from augury.train.corpus import Corpus, answer
from augury.train.eagle import Eagle3
from augury.train.gate import check_gate
from augury.train.linear_loss import linear_loss
from augury.train.loop import BEST, Schedule, TrainingRun
from augury.train.losses import LOSSES, shared_mass
from augury.train.pairs import pack
from augury.train.reach import all_rows, places, reach
from augury.train.study import Lesson, Study
from augury.train.trainee import Goal, Trainee, kinds, layers_of, trainee_of
from augury.train.unroll import unroll
from augury.train.validate import agreed, walk

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
CPU, PAIRS = torch.device("cpu"), ("eagle3", "p-eagle", "eagle", "mtp")
KINDS = (*PAIRS, "draft_model", "medusa", "mlp_speculator", "dflash", "pard")
IN_ONE_PASS = {
    "p-eagle": {"method": "eagle3", "parallel_drafting": True},
    "pard": {"method": "draft_model", "parallel_drafting": True},
}
PROMPTS = [[65 + i % 26, 97 + i % 13, 65 + i % 7, 99] for i in range(24)]
SHORT = Schedule(steps=12, batch=4, longest=40, every=4, rate=3e-3)


@pytest.fixture(scope="module")
def corpus(toy_model: Path) -> Corpus:
    llm = LLM(str(toy_model), device="cpu", max_model_len=64)
    return answer(llm, PROMPTS, 24, about={"target": "toy"})


def teacher_of(toy_model: Path, kind: str) -> Teacher:
    return Teacher(toy_model, layers_of(kind, read_config(toy_model)), CPU, torch.float32)


def new_trainee(toy_model: Path, kind: str, teacher: Teacher, vocabulary: int = 0) -> Trainee:
    config = read_config(toy_model)
    words = torch.arange(vocabulary or config.vocab_size)
    return trainee_of(kind)(Goal(kind, 3, vocabulary), config, teacher, words)


def run_of(
    toy_model: Path, directory: Path, schedule: Schedule = SHORT, kind: str = "eagle3", **more: Any
) -> TrainingRun:
    teacher = teacher_of(toy_model, kind)
    return TrainingRun(new_trainee(toy_model, kind, teacher, **more), teacher, schedule, toy_model, directory)


def test_a_corpus_is_read_as_it_was_written(corpus: Corpus, tmp_path: Path) -> None:
    assert len(corpus) > 16 and 0.3 < corpus.sampled.float().mean() < 0.7
    for number in range(len(corpus)):
        text, start = corpus.text(number).tolist(), int(corpus.starts[number])
        assert text[:start] in PROMPTS and len(text) == corpus.lengths[number]
    corpus.save(tmp_path / "c.safetensors")
    again = Corpus.load(tmp_path / "c.safetensors")
    assert again.about == corpus.about and torch.equal(again.tokens, corpus.tokens)
    torch.save({}, tmp_path / "other")
    with pytest.raises(Exception, match=r"corpus|header|safetensors"):
        Corpus.load(tmp_path / "other")


def test_every_text_comes_once_an_epoch(corpus: Corpus) -> None:
    order, again = (Order(corpus, 4, 40, seed=3) for _ in range(2))
    epoch = [order.texts(step) for step in range(order.steps_an_epoch)]
    flat = [number for texts in epoch for number in texts]
    assert len(set(flat)) == len(flat) >= len(corpus) - 3
    assert again.texts(order.steps_an_epoch + 1) == order.texts(order.steps_an_epoch + 1)
    assert [order.texts(step + order.steps_an_epoch) for step in range(order.steps_an_epoch)] != epoch


@pytest.mark.parametrize("kind", PAIRS)
def test_the_unrolling_is_that_of_the_gates(kind: str, toy_model: Path, corpus: Corpus) -> None:
    """Two implementations of the training-time test: rows packed with a mask, and whole batches."""
    teacher = teacher_of(toy_model, kind)
    trainee, layers = new_trainee(toy_model, kind, teacher), layers_of(kind, read_config(toy_model))
    batch = teacher.batch(corpus, [0, 5, 9], 40)
    lessons = []
    for i, length in enumerate(batch.lengths.tolist()):
        parts = batch.streams[i, : length - 1].chunk(len(layers), dim=1)
        lessons.append(Lesson(batch.tokens[i, :length], int(batch.starts[i]), dict(zip(layers, parts, strict=True))))
    study: Any = Study.__new__(Study)
    study.embedding = teacher.embedding
    with torch.no_grad():
        expected = trainee.module.unroll(study, pack(lessons, layers, 3))
        found = unroll(trainee.module, teacher.embedding, batch, all_rows(batch, 3))
        for i, states in enumerate(expected):
            row = torch.arange(batch.tokens.shape[1] - 1)
            anchors = (row >= batch.starts[:, None] - 1) & (row < batch.lengths[:, None] - 2)
            known = torch.cat(
                [
                    lesson.start + 1 + i + torch.arange(int(n)) < len(lesson.tokens)
                    for lesson, n in zip(lessons, anchors.sum(1), strict=True)
                ]
            )
            torch.testing.assert_close(found[i][anchors][known], states[known], atol=2e-5, rtol=1e-4)
            assert places(batch, i).sum() == known.sum()


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind not in ("dflash", "draft_model")])
def test_rows_that_reach_a_guess_have_their_usual_states(kind: str, toy_model: Path, corpus: Corpus) -> None:
    teacher = teacher_of(toy_model, kind)
    trainee = new_trainee(toy_model, kind, teacher)
    batch = teacher.batch(corpus, [0, 5, 9], 40)
    some = reach(batch, trainee.goal.depth)
    assert [len(rows) for rows in some] == sorted({len(rows) for rows in some}, reverse=True)  # ever fewer
    assert all(torch.equal(later, rows[: len(later)]) for rows, later in itertools.pairwise(some))
    with torch.no_grad():
        whole = trainee.states(batch, all_rows(batch, trainee.goal.depth))
        for rows, states, every in zip(some, trainee.states(batch, some), whole, strict=True):
            torch.testing.assert_close(states, every[:, rows], atol=2e-5, rtol=1e-4)


def test_the_teachers_streams_are_the_engines(toy_model: Path, corpus: Corpus) -> None:
    """What is trained on is what a served drafter is handed."""
    prompt, config = PROMPTS[0], read_config(toy_model)
    study = Study.of(toy_model, [prompt], 12)
    text = study.lessons[0].tokens.tolist()
    teacher = teacher_of(toy_model, "eagle3")
    batch = teacher.batch(Corpus.of([(prompt, text[len(prompt) :], False)], {}), [0], 64)
    for layer, stream in zip(layers_of("eagle3", config), batch.streams[0].chunk(3, dim=1), strict=True):
        torch.testing.assert_close(stream[:-1], study.lessons[0].streams[layer], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("trains_head", [True, False])
def test_a_loss_by_chunks_is_the_loss_at_once(name: str, trains_head: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augury.train.linear_loss.CHUNK", 7)
    dice = torch.Generator().manual_seed(0)
    states, head, taught, rows = (torch.randn(n, 8, generator=dice) for n in (33, 20, 33, 20))
    weights = torch.arange(33) % 3 > 0
    inputs = [states.requires_grad_()] + ([head.requires_grad_()] if trains_head else [])
    found = 0.3 * linear_loss(states, head, taught, rows, weights, LOSSES[name])
    expected = 0.3 * LOSSES[name](taught @ rows.T, states @ head.T)[weights].sum()
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(mine, theirs)
    with torch.no_grad():
        torch.testing.assert_close(0.3 * linear_loss(states, head, taught, rows, weights, LOSSES[name]), expected)


@given(st.integers(2, 6), st.floats(0.05, 4))
def test_losses(vocabulary: int, spread: float) -> None:
    dice = torch.Generator().manual_seed(vocabulary)
    p, q = (spread * torch.randn(5, vocabulary, generator=dice) for _ in range(2))
    for name, loss in LOSSES.items():
        if name not in ("ce", "dpace"):  # these have the likeliest token as their goal
            assert float(loss(p, p).sum()) == pytest.approx(0, abs=1e-5) and float(loss(p, q).sum()) > 0
    apart = float((p.softmax(-1) - q.softmax(-1)).abs().sum())
    assert float(LOSSES["tv"](p, q).sum()) == pytest.approx(apart / 2, rel=1e-4, abs=1e-5)
    assert ((shared_mass(p, q) > 0) & (shared_mass(p, q) <= 1 + 1e-6)).all()


@given(st.lists(st.integers(0, 3), min_size=30, max_size=30), st.integers(2, 6), st.integers(9, 30))
def test_steps_begin_where_the_last_ended(line: list[int], start: int, length: int) -> None:
    """Where chances are 0 and 1, expected steps are those of one walk."""
    at, counts = start, [0] * 4
    while at < length - 1:
        counts[line[at - 1]] += 1
        at += line[at - 1] + 1
    assert walk([[1.0] * right + [0.0] * (3 - right) for right in line], start, length) == counts


def test_a_draft_is_as_good_as_its_beginning(toy_model: Path, corpus: Corpus) -> None:
    batch = teacher_of(toy_model, "eagle").batch(corpus, [0, 1], 40)
    rows = batch.tokens.shape[1] - 1
    index = (torch.arange(rows)[:, None] + 2 + torch.arange(3)).clamp(max=rows)
    drafts = batch.tokens[:, index].clone()
    right = agreed(drafts, batch)
    assert right[0, 4] == 3 and right[0, int(batch.lengths[0]) - 2] == 0
    drafts[0, 4, 1] += 1
    assert agreed(drafts, batch)[0, 4] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_loss_and_exports_what_the_engine_runs(
    kind: str, toy_model: Path, corpus: Corpus, tmp_path: Path
) -> None:
    """The drafts that validation simulates are those that the served head makes."""
    run = run_of(toy_model, tmp_path, replace(SHORT, steps=40, every=40, batch=8, rate=5e-3), kind)
    first = run._step(corpus, list(range(8)))
    done = run.train(corpus, {"same": corpus})
    assert done.loss < 0.9 * first and done.history[-1]["length"]["same"] > 1.05
    llm = LLM(str(toy_model), device="cpu", max_model_len=64)
    (simulated,) = run.measure({"greedy": answer(llm, PROMPTS[:6], 24, sampled_share=0.0)}).values()
    spec: dict[str, Any] = {"method": kind, "model": str(tmp_path / BEST), "num_speculative_tokens": 3}
    spec |= IN_ONE_PASS.get(kind, {})
    model = spec.pop("model") if kind == "mtp" else str(toy_model)  # an MTP layer is part of its target
    served = LLM(model, device="cpu", max_model_len=64, speculative_config=spec)
    answer(served, PROMPTS[:6], 24, sampled_share=0.0)
    stats = served.engine.stats.spec
    assert 1 + stats.num_accepted_tokens / stats.num_drafts == pytest.approx(simulated.length, abs=0.1)
    assert simulated.length > 1.05


@torch.no_grad()
def test_branches_are_written_as_texts_of_their_own_are(toy_model: Path, corpus: Corpus) -> None:
    """Drafts from all rows at once are those that the model writes behind each beginning of the text."""
    teacher = teacher_of(toy_model, "draft_model")
    trainee, batch = new_trainee(toy_model, "draft_model", teacher), teacher.batch(corpus, [0, 3], 12)
    drafts = trainee.drafts(batch, 3)
    model: Any = trainee.module
    for row in range(batch.tokens.shape[1] - 1):
        text = batch.tokens[:, : row + 2]
        for _ in range(3):
            text = torch.cat([text, model(input_ids=text).logits[:, -1:].argmax(2)], dim=1)
        assert torch.equal(drafts[:, row], text[:, -3:])


@pytest.mark.parametrize("kind", ["eagle3", "draft_model", "dflash", "pard"])  # the last two draw what they train on
def test_a_killed_run_has_the_curve_of_one_that_was_not(
    kind: str, toy_model: Path, corpus: Corpus, tmp_path: Path
) -> None:
    held = {"a": corpus}
    whole = run_of(toy_model, tmp_path / "whole", kind=kind).train(corpus, held).history

    class Killed(Exception):
        pass

    def kill(progress: Any) -> None:
        if progress.step == 7:
            raise Killed

    broken = run_of(toy_model, tmp_path / "broken", kind=kind)
    with pytest.raises(Killed):
        broken.train(corpus, held, kill)
    again = run_of(toy_model, tmp_path / "broken", kind=kind)
    assert again.resume() and again.progress.step == 4
    assert again.train(corpus, held).history == whole
    assert [json.loads(line)["step"] for line in (tmp_path / "broken" / "log.jsonl").open()] == [4, 8, 12]
    with pytest.raises(ConfigError, match="other settings \\(rate\\)"):
        run_of(toy_model, tmp_path / "broken", replace(SHORT, rate=1e-4), kind).resume()
    with pytest.raises(ConfigError, match="other settings \\(kind"):
        run_of(toy_model, tmp_path / "broken", kind="medusa").resume()


@pytest.mark.parametrize(
    ("kind", "stated"),
    [("eagle3", "draft_vocab_size"), ("medusa", "truncated_vocab_size"), ("mlp_speculator", "draft_vocab_size")],
)
def test_words_of_its_own(kind: str, stated: str, toy_model: Path, corpus: Corpus, tmp_path: Path) -> None:
    """They are all that is guessed, by the simulation and by the engine alike."""
    run = run_of(toy_model, tmp_path, replace(SHORT, steps=40, every=40, rate=5e-3), kind, vocabulary=128)
    run.train(corpus, {"a": corpus})
    assert json.loads((tmp_path / BEST / "config.json").read_text())[stated] == 128
    batch = run.teacher.batch(corpus, [0, 1], 40)
    assert int(run.trainee.drafts(batch, 3).max()) < 128
    llm = LLM(str(toy_model), device="cpu", max_model_len=64)
    (simulated,) = run.measure({"greedy": answer(llm, PROMPTS[:6], 24, sampled_share=0.0)}).values()
    spec = {"method": kind, "model": str(tmp_path / BEST), "num_speculative_tokens": 3}
    served = LLM(str(toy_model), device="cpu", max_model_len=64, speculative_config=spec)
    answer(served, PROMPTS[:6], 24, sampled_share=0.0)
    stats = served.engine.stats.spec
    assert 1 + stats.num_accepted_tokens / stats.num_drafts == pytest.approx(simulated.length, abs=0.1)


@pytest.fixture
def short_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A toy's short text is known by heart in half the steps."""
    monkeypatch.setattr(gate, "SCHEDULE", replace(gate.SCHEDULE, steps=80, every=80))


@pytest.mark.usefixtures("short_gate")
@pytest.mark.parametrize("kind", KINDS)
def test_the_gate_lets_a_sound_path_through(kind: str, toy_model: Path, corpus: Corpus) -> None:
    teacher = teacher_of(toy_model, kind)
    assert check_gate(new_trainee(toy_model, kind, teacher), teacher, corpus, toy_model) > 0.8


def test_the_gate_stops_features_of_another_layer(toy_model: Path, corpus: Corpus) -> None:
    layers = layers_of("eagle3", read_config(toy_model))
    off_by_one = Teacher(toy_model, (1, *layers[1:]), CPU, torch.float32)
    with pytest.raises(ConfigError, match=f"the gate failed: the features of layer {layers[0]} "):
        check_gate(new_trainee(toy_model, "eagle3", off_by_one), off_by_one, corpus, toy_model)


@pytest.mark.usefixtures("short_gate")
def test_the_gate_stops_a_head_that_is_served_wrongly(
    toy_model: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = teacher_of(toy_model, "eagle3")
    monkeypatch.setattr(Eagle3, "leave", lambda self, out: (self.norm(out.roll(1, 1)), out))  # not what engines do
    with pytest.raises(ConfigError, match="do not agree on what the head reads"):
        check_gate(new_trainee(toy_model, "eagle3", teacher), teacher, corpus, toy_model)
