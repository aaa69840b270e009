"""Gate heads on the toy: every kind is trained, exported, loaded as any checkpoint is, and its drafts are accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gate import Studied

from augury import LLM, SamplingParams
from augury.model.target import NORMED
from augury.train import gates
from augury.train.fit import fit, scale
from augury.train.gates import KINDS, Gates, fingerprint
from augury.train.pairs import Deck, pack
from augury.train.places import Places
from augury.train.study import Study, block_layers, stream_layers
from augury.train.words import IGNORED, Competition, places

pytestmark = pytest.mark.usefixtures("one_thread_throughout")

PROMPTS = [[64, 65, 66, 67], [70, 71, 72]]
LENGTH = 40
METHODS = {"p-eagle": ("eagle3", {"parallel_drafting": True}), "dflash2": ("dflash", {})}
TREE = {"tree": {"max_nodes": 12, "top_k": 3}}


@pytest.fixture(scope="module")
def made(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Gates:
    return Gates(toy_model, PROMPTS, LENGTH, tmp_path_factory.mktemp("gates"))


def test_a_study_is_what_transformers_says(toy_model: Path, made: Gates) -> None:
    studied = Studied(toy_model, PROMPTS, LENGTH)
    assert [lesson.tokens.tolist() for lesson in made.study.lessons] == studied.texts
    for lesson, prompt in zip(made.study.lessons, PROMPTS, strict=True):
        assert lesson.start == len(prompt)
        for layer in (0, 1, 2, NORMED):
            want = studied.streams(lesson.tokens.tolist(), (layer,))[:-1]
            torch.testing.assert_close(lesson.streams[layer], want, atol=1e-4, rtol=1e-3)
    said = {token for text, prompt in zip(studied.texts, PROMPTS, strict=True) for token in text[len(prompt) :]}
    assert made.study.words.tolist() == sorted(said)


def test_layers_lie_inside_the_target() -> None:
    for layers in (1, 2, 5, 6, 30, 80):
        ids = (*stream_layers(layers), *block_layers(layers))
        assert all(0 <= i <= layers for i in ids) and layers in block_layers(layers)
    assert stream_layers(30) == (2, 15, 27)


def test_what_a_draft_starts_from(made: Gates) -> None:
    """An anchor's guesses are the tokens behind it, and it sees its own text up to itself."""
    lessons = made.study.lessons
    pairs = pack(lessons, (NORMED,), 3)
    assert len(pairs.anchors) == 2 * (LENGTH - 1) and int(pairs.seen.sum(1)[0]) == len(PROMPTS[0])
    for anchor, row in enumerate(pairs.anchors.tolist()):
        lesson, base = (lessons[0], 0) if row < len(lessons[0].tokens) - 2 else (lessons[1], len(lessons[0].tokens) - 2)
        at = row - base + 1  # the anchor's token
        assert pairs.tokens[row] == lesson.tokens[at]
        assert torch.equal(pairs.streams[row], lesson.streams[NORMED][at - 1])
        known = lesson.tokens[at + 1 : at + 4].tolist()
        assert pairs.ahead[anchor].tolist() == known + [-1] * (3 - len(known))
        assert pairs.seen[anchor].nonzero()[:, 0].tolist() == list(range(base, row + 1))
    spots = Places.of(lessons, 3)
    assert torch.equal(spots.ahead, pairs.ahead) and torch.equal(spots.newest, pairs.tokens[pairs.anchors])
    assert torch.equal(spots.hidden, pairs.streams[pairs.anchors])


def test_labels_and_competition() -> None:
    words = torch.tensor([3, 7, 9])
    assert places(words, torch.tensor([7, 3, 8, -1, 200])).tolist() == [1, 0, IGNORED, IGNORED, IGNORED]
    head = torch.randn(50, 8, generator=torch.Generator().manual_seed(1))
    rivals = Competition(head, words)
    rivals.draw()
    good, bad = (rivals.loss(4 * head[[token, token]], torch.tensor([7, 7])) for token in (7, 3))
    assert good < bad


def test_fitting_warms_up_falls_and_stops() -> None:
    assert scale(0, 100, 5) == 0.2 and scale(5, 100, 5) == 1.0 and scale(99, 100, 5) < 0.11
    module = torch.nn.Linear(2, 1, bias=False)
    seen: list[float] = []
    last = fit(module, lambda: (module(torch.ones(2)) - 1).pow(2).sum(), 500, 0.1, seen.append)
    assert last == seen[-1] < 0.01 and len(seen) < 500
    assert fit(module, lambda: module.weight.sum(), 0) == float("inf")


def test_a_deck_deals_everything_before_it_repeats() -> None:
    deck = Deck(list(range(6)), 2)
    rounds = [sorted(deck.deal() + deck.deal() + deck.deal()) for _ in range(3)]
    assert rounds == [list(range(6))] * 3
    assert len(Deck([1, 2], 5).deal()) == 2


def drafted(toy_model: Path, kind: str, head: Path, **spec: Any) -> LLM:
    method, more = METHODS.get(kind, (kind, {}))
    wanted = {"method": method, "num_speculative_tokens": 4, **more, **spec}
    wanted |= {} if method == "mtp" else {"model": str(head)}
    return LLM(str(head if method == "mtp" else toy_model), device="cpu", max_model_len=256, speculative_config=wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gate(toy_model: Path, made: Gates, kind: str) -> None:
    """Train, export, load through the public path: the first block is accepted whole, and no text changes."""
    assert made.find(kind) is None
    gate = made.train(kind, steps=150)
    assert gate.loss < 0.5 and made.find(kind) == gate
    trees = [] if kind == "p-eagle" else [TREE]
    for shape in ({}, *trees):
        llm = drafted(toy_model, kind, gate.directory, **shape)
        for lesson in made.study.lessons:
            prompt, answer = lesson.tokens[: lesson.start].tolist(), lesson.tokens[lesson.start :].tolist()
            params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
            output = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0].outputs[0]
            assert output.token_ids == answer
            assert output.from_draft[:6] == [False, True, True, True, True, False]
        assert llm.engine.stats.spec.acceptance_length > 4


def test_gates_are_kept_and_know_what_they_have_seen(toy_model: Path, made: Gates, tmp_path: Path) -> None:
    gate = made.train("medusa", steps=3)
    root = gate.directory.parent.parent
    assert gate.directory.parent.name == fingerprint(toy_model)
    assert Gates(toy_model, PROMPTS[:1], LENGTH - 5, root).find("medusa") == gate  # part of it
    assert Gates(toy_model, [*PROMPTS, [1, 2]], LENGTH, root).find("medusa") is None
    assert Gates(toy_model, PROMPTS, LENGTH + 1, root).find("medusa") is None
    assert Gates(toy_model, PROMPTS, LENGTH, tmp_path).find("medusa") is None
    file = gate.directory / gates.MANIFEST
    told = json.loads(file.read_text())
    file.write_text(json.dumps(told | {"version": 0}))
    assert made.find("medusa") is None
    file.write_text("{")
    assert made.find("medusa") is None
    again = made.train("medusa", steps=2)  # in its place
    assert again.steps == 2 and made.find("medusa") == again


def test_another_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match="cannot be trained for 'gpt2'"):
        Study.of(tmp_path, PROMPTS, 3)
