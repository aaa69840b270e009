"""Losses against their formulas, written out."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.model.checkpoint import read_config
from augury.train.batches import Teacher
from augury.train.corpus import Corpus
from augury.train.losses import LOSSES
from augury.train.pace import pace
from augury.train.reach import places, reach
from augury.train.trainee import Goal, layers_of, trainee_of

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
TEXTS = Corpus.of([([65, 66, 67 + i], [70 + (i * j) % 40 for j in range(9 + i)], False) for i in range(3)], {})
logits = st.lists(st.floats(-4, 4), min_size=4, max_size=4)


def softmax(scores: list[float]) -> list[float]:
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


@settings(max_examples=25)
@given(logits, logits)
def test_every_loss_is_its_formula(target: list[float], drafter: list[float]) -> None:
    p, q = softmax(target), softmax(drafter)
    shared = sum(map(min, p, q))
    divergence = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    share = math.exp(-3 * shared)
    likeliest = -math.log(q[max(range(4), key=torch.tensor(target).tolist().__getitem__)])
    expected = {
        "kl": divergence,
        "tv": 1 - shared,
        "lk": share * divergence + (1 - share) * (1 - shared),
        "ce": likeliest,
        "dpace": likeliest,
    }
    assert expected.keys() == LOSSES.keys()
    for name, value in expected.items():
        found = LOSSES[name](torch.tensor([target]), torch.tensor([drafter]))
        assert float(found) == pytest.approx(value, rel=1e-4, abs=1e-5), name


def test_the_hybrid_does_not_learn_from_its_own_weight() -> None:
    """lambda is taken as it is: the gradient is that of a fixed mixture."""
    dice = torch.Generator().manual_seed(0)
    target, drafter = (torch.randn(5, 7, generator=dice) for _ in range(2))
    drafter.requires_grad_()
    share = torch.exp(-3 * torch.minimum(target.softmax(1), drafter.softmax(1)).sum(1)).detach()
    mixed = share * LOSSES["kl"](target, drafter) + (1 - share) * LOSSES["tv"](target, drafter)
    found, expected = (torch.autograd.grad(x.sum(), drafter)[0] for x in (LOSSES["lk"](target, drafter), mixed))
    torch.testing.assert_close(found, expected)


def weight(chances: list[float], j: int) -> float:
    """w_j as the paper writes it, a = 0.5."""
    return sum(math.prod(0.5 * q + 0.5 for q in chances[: m + 1]) for m in range(j, len(chances)))


@settings(max_examples=40)
@given(st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=1, max_size=3), st.data())
def test_what_a_guess_weighs(rows: list[list[float]], data: st.DataObject) -> None:
    """Rows may end early, by the text or because they were not drawn for later guesses."""
    ends = [data.draw(st.integers(1, 4)) for _ in rows]
    drawn = sorted((data.draw(st.integers(1, len(rows))) for _ in range(3)), reverse=True)
    chances = [torch.tensor([[row[i] for row in rows]])[:, : [len(rows), *drawn][i]] for i in range(4)]
    counted = [torch.tensor([[i < end for end in ends]])[:, : chances[i].shape[1]] for i in range(4)]
    found = pace(chances, counted)
    for number, row in enumerate(rows):
        reached = [i for i in range(4) if number < chances[i].shape[1] and i < ends[number]]
        for i in range(4):
            if number < found[i].shape[1]:
                expected = weight(row[: len(reached)], i) if i in reached else 0.0
                assert float(found[i][0, number]) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_drafters_loss_is_weighed_row_by_row(kind: str, toy_model: Path) -> None:
    config = read_config(toy_model)
    teacher = Teacher(toy_model, layers_of(kind, config), torch.device("cpu"), torch.float32)
    trainee = trainee_of(kind)(Goal(kind, 3), config, teacher, torch.arange(config.vocab_size))
    batch = teacher.batch(TEXTS, [0, 1, 2], 64)
    found = trainee.loss(batch, LOSSES["dpace"])
    found.backward()  # type: ignore[no-untyped-call]
    assert any(tensor.grad is not None and tensor.grad.any() for tensor in trainee.module.parameters())
    if kind == "dflash":
        return  # its rows are drawn elsewhere
    reached = reach(batch, 3)
    total, counted = 0.0, 0
    with torch.no_grad():
        states = trainee.states(batch, reached)
        for text in range(3):
            for place in range(len(reached[0])):
                losses = []
                for i, rows in enumerate(reached):
                    if place < len(rows) and places(batch, i)[text, rows[place]]:
                        label = (batch.normed[text, int(rows[place]) + 1 + i] @ teacher.head.T).argmax()
                        losses.append(-float(trainee.logits(states[i][text, place]).log_softmax(0)[label]))
                chances = [math.exp(-loss) for loss in losses]
                total += sum(weight(chances, j) * loss for j, loss in enumerate(losses))
                counted += len(losses)
    assert float(found.detach()) == pytest.approx(total / counted, rel=1e-4)
