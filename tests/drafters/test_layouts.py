"""What drafters feed their networks, against vLLM's worked examples. vLLM pads where drafts were rejected; we pack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from augury.config.resolve import resolve
from augury.drafters.base import DrafterSetup, DraftInput
from augury.drafters.draft_model import ModelDrafter
from augury.drafters.recurrent import RecurrentDrafter
from augury.kernels.rows import Rows
from augury.model.load import load_target
from augury.model.target import KVCache, LayerShape, TargetOutput
from augury.verify.sampling import SlotSampling

BLOCK, MASK = 4, 259


class Recorder:
    """A network that guesses nothing and remembers what it was given."""

    features = (0,)
    targets = None
    feature_size = 1
    cache_dtype = torch.float32
    mask_token = MASK

    def __init__(self) -> None:
        self.layer_shapes = [LayerShape(1, 2, 2)]
        self.cache = KVCache()
        self.seen: list[tuple[Rows, Tensor]] = []
        self.parts = type("Parts", (), {"mask_hidden": torch.tensor([[-1.0]])})

    def combine(self, streams: Tensor) -> Tensor:
        return streams

    def forward(self, rows: Rows, hidden: Tensor, step: int) -> tuple[Tensor, Tensor]:
        self.seen.append((rows, hidden))
        scores = torch.zeros(len(rows.wanted), 260)
        scores[:, 7] = 1.0  # it always guesses token 7
        return scores, torch.full((len(rows.wanted), 1), 50.0 + step)


def a_turn(
    texts: list[list[int]], start: list[int], ran: list[int], nodes: list[int], path: list[list[int]]
) -> DraftInput:
    """Slot g holds texts[g]; the pass ran `ran` known tokens from `start` on, then drafts, of which `path` stayed."""
    groups, width = len(texts), 32
    history = torch.zeros(groups, width, dtype=torch.int64)
    for g, text in enumerate(texts):
        history[g, : len(text)] = torch.tensor(text)
    rows = sum(ran) + sum(nodes)
    return DraftInput(
        slots=torch.arange(groups),
        lengths=torch.tensor([len(text) for text in texts]),
        budget=torch.full((groups,), 3),
        history=history,
        sampling=SlotSampling.allocate(groups),
        block_tables=torch.arange(1, 1 + groups * 8).view(groups, 8),
        block_size=BLOCK,
        most_rows=rows + 2 * groups,
        span=32,
        row_begin=torch.tensor([sum(ran[:g]) + sum(nodes[:g]) for g in range(groups)]),
        start=torch.tensor(start),
        num_new_tokens=torch.tensor(ran),
        nodes=torch.tensor(nodes),
        path=torch.tensor(path),
        features=(torch.arange(rows, dtype=torch.float32)[:, None],),
    )


def recurrent(toy_model: Path, **spec: Any) -> tuple[RecurrentDrafter, Recorder]:
    config = resolve({"method": "eagle3", "model": str(toy_model), "num_speculative_tokens": 3, **spec})
    assert config is not None
    target, head = load_target(toy_model, "float32", "cpu"), Recorder()
    drafter = RecurrentDrafter(config, DrafterSetup(target, 4, 64, "float32", toy_model), head)
    drafter.allocate(33 * BLOCK, BLOCK)
    return drafter, head


def test_pairs_of_prompts(toy_model: Path) -> None:
    """3.4: ids [10 11 12 | 20 21 | 30 31 32 33], next 100, 200, 250: shifted by one, the next token at the end."""
    drafter, head = recurrent(toy_model)
    texts = [[10, 11, 12, 100], [20, 21, 200], [30, 31, 32, 33, 250]]
    drafter.propose(a_turn(texts, [0, 0, 0], [3, 2, 4], [0, 0, 0], [[-1]] * 3))
    rows, hidden = head.seen[0]
    assert rows.tokens.tolist() == [11, 12, 100, 21, 200, 31, 32, 33, 250]
    assert rows.positions.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]  # unchanged: those of the features
    assert hidden[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]  # unchanged: h(p) beside token p + 1
    assert rows.wanted.tolist() == [2, 4, 8]
    # Later steps: one token a request, the draft before it, position + 1, the head's own feedback.
    for step in (1, 2):
        rows, hidden = head.seen[step]
        assert rows.tokens.tolist() == [7, 7, 7]
        assert rows.positions.tolist() == [2 + step, 1 + step, 3 + step]
        assert hidden[:, 0].tolist() == [49.0 + step] * 3
    assert len(head.seen) == 3


def test_pairs_behind_rejected_drafts(toy_model: Path) -> None:
    """Of drafts [a b c] one was accepted: its row and the last known one stay, the sample row is the newer of them."""
    drafter, head = recurrent(toy_model)
    texts = [[1, 2, 3, 4, 5, 6, 7], [9, 8, 7, 6]]
    drafter.propose(a_turn(texts, [4, 2], [1, 1], [3, 2], [[0, -1, -1], [-1, -1, -1]]))
    rows, hidden = head.seen[0]
    assert rows.tokens.tolist() == [6, 7, 6]  # token p + 1 of positions 4, 5 | 2
    assert rows.positions.tolist() == [4, 5, 2]
    assert hidden[:, 0].tolist() == [0, 1, 4]  # rows of the pass: known, its first draft | known
    assert rows.wanted.tolist() == [1, 2]


def test_an_unfinished_prompt_takes_the_next_prompt_token(toy_model: Path) -> None:
    drafter, head = recurrent(toy_model)
    inputs = a_turn([[10, 11, 12, 13, 14, 15]], [0], [3], [0], [[-1]])
    inputs.lengths, inputs.budget = torch.tensor([3]), torch.tensor([0])  # three of six are read, nothing is drawn
    drafter.propose(inputs)
    assert head.seen[0][0].tokens.tolist() == [11, 12, 13]


def test_p_eagle(toy_model: Path) -> None:
    """3.6: K=3, ids [11 12 100 M M | 21 22 23 200 M M], positions 5-9 | 10-15, sample rows of each: the last three."""
    drafter, head = recurrent(toy_model, parallel_drafting=True)
    texts = [[0] * 5 + [10, 11, 12, 100], [0] * 10 + [20, 21, 22, 23, 200]]
    drafter.propose(a_turn(texts, [5, 10], [3, 4], [0, 0], [[-1]] * 2))
    rows, hidden = head.seen[0]
    assert rows.tokens.tolist() == [11, 12, 100, MASK, MASK, 21, 22, 23, 200, MASK, MASK]
    assert rows.positions.tolist() == [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    assert rows.wanted.tolist() == [2, 3, 4, 8, 9, 10]  # vLLM's 9, 10, 11 stand behind one padded row
    assert hidden[:, 0].tolist() == [0, 1, 2, -1, -1, 3, 4, 5, 6, -1, -1]  # the learnt state under every mask
    assert len(head.seen) == 1


def model_drafter(toy_model: Path, directory: Path, **spec: Any) -> tuple[ModelDrafter, list[Rows]]:
    given = {"method": "draft_model", "model": str(directory), "num_speculative_tokens": 3, **spec}
    config = resolve(given)
    assert config is not None
    target = load_target(toy_model, "float32", "cpu")
    drafter, seen = ModelDrafter(config, DrafterSetup(target, 4, 64, "float32", toy_model)), []

    def forward(rows: Rows, features: tuple[int, ...] = ()) -> TargetOutput:
        seen.append(rows)
        scores = torch.zeros(len(rows.wanted), 260)
        scores[:, 7] = 1.0
        return TargetOutput(scores)

    drafter.model.forward = forward  # type: ignore[method-assign]
    return drafter, seen


def test_draft_model(toy_model: Path) -> None:
    """3.5: rows [10 11 12(rejected)], [20 21], next 100, 200: unshifted, the accepted tokens and the next one."""
    drafter, seen = model_drafter(toy_model, toy_model)
    drafter.propose(a_turn([[10, 11, 100], [20, 21, 200]], [0, 0], [2, 2], [1, 0], [[-1], [-1]]))
    assert seen[0].tokens.tolist() == [10, 11, 100, 20, 21, 200]
    assert seen[0].positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert seen[0].wanted.tolist() == [2, 5]
    assert [rows.tokens.tolist() for rows in seen[1:]] == [[7, 7], [7, 7]]
    assert [rows.positions.tolist() for rows in seen[1:]] == [[3, 3], [4, 4]]


def test_draft_model_lags_one_token_behind_full_acceptance(toy_model: Path) -> None:
    """All three drafts stayed: the last one's row was never computed, so two tokens are read, not one."""
    drafter, seen = model_drafter(toy_model, toy_model)
    drafter.propose(a_turn([[10, 11]], [0], [1], [0], [[-1, -1, -1]]))
    drafter.propose(a_turn([[10, 11, 7, 7, 7, 50]], [1], [1], [3], [[0, 1, 2]]))
    assert seen[3].tokens.tolist() == [7, 50] and seen[3].positions.tolist() == [4, 5]


@pytest.fixture(scope="module")
def pard(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pard")
    for file in toy_model.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "pard_token": MASK, "spd_type": "pard"}))
    return directory


def test_pard(toy_model: Path, pard: Path) -> None:
    """3.6: unshifted, the next token followed by K - 1 masks; drafts are read from those K rows; masks do not stay."""
    drafter, seen = model_drafter(toy_model, pard, parallel_drafting=True)
    drafter.propose(a_turn([[10, 11, 100], [20, 21, 22, 200]], [0, 0], [2, 3], [0, 0], [[-1], [-1]]))
    assert seen[0].tokens.tolist() == [10, 11, 100, MASK, MASK, 20, 21, 22, 200, MASK, MASK]
    assert seen[0].positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]
    assert seen[0].wanted.tolist() == [2, 3, 4, 8, 9, 10]
    drafter.propose(a_turn([[10, 11, 100, 7, 50]], [2], [1], [3], [[0, -1, -1]]))
    assert seen[1].tokens.tolist() == [7, 50, MASK, MASK] and seen[1].positions.tolist() == [3, 4, 5, 6]
