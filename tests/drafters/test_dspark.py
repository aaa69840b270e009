"""DSpark: the block and its correction against their formula, both layouts, chains and trees, and the text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from formulas_dflash import Blocks, DFlashFormula, Shape, published_config, shaken
from gate import Studied, export, overfit
from generating import PROMPTS, encoded, ids
from stepping import whole_step
from torch import Tensor, nn

from augury import LLM, SamplingParams
from augury.model.errors import ModelError

DEVICE = os.environ.get("AUGURY_TEST_DEVICE", "cpu")
VOCAB, RANK, MASK, K = 260, 12, 259, 4
LAYERS = (1, 2)  # streams read, counted in layers run; the files name the layers themselves


class Markov(nn.Module):
    """The correction, straight from its formula."""

    def __init__(self, kind: str, vocab: int, hidden: int) -> None:
        super().__init__()
        self.kind = kind
        self.markov_w1, self.markov_w2 = nn.Embedding(VOCAB, RANK), nn.Linear(RANK, vocab, bias=False)
        if kind == "gated":
            self.gate_proj = nn.Linear(hidden + RANK, RANK)
        if kind == "rnn":
            self.joint_proj = nn.Linear(2 * RANK + hidden, 3 * RANK)

    def forward(self, previous: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        read = self.markov_w1(previous)
        if self.kind == "gated":
            read = torch.sigmoid(self.gate_proj(torch.cat([hidden, read], -1))) * read
        if self.kind == "rnn":
            gate, fresh, shown = self.joint_proj(torch.cat([state, read, hidden], -1)).chunk(3, -1)
            state = torch.sigmoid(gate) * state + (1 - torch.sigmoid(gate)) * torch.tanh(fresh)
            read = torch.tanh(shown)
        return self.markov_w2(read), state


class Formula(DFlashFormula):
    def __init__(self, kind: str, anchored: bool, vocab: int = VOCAB) -> None:
        super().__init__(Shape())
        self.markov_head, self.anchored = Markov(kind, vocab, 64), anchored
        if vocab != VOCAB:
            self.lm_head = nn.Linear(64, vocab, bias=False)

    def hidden(self, studied: Studied, streams: Tensor, text: list[int], anchors: list[int]) -> Tensor:
        """[blocks, K, H] of the rows that guess, for blocks that begin at these places of the text."""
        size = K if self.anchored else K + 1
        blocks = Blocks.at(anchors, size)
        own = blocks.positions == blocks.anchor
        tokens = torch.where(own, torch.tensor(text)[blocks.anchor], MASK)
        found = self(streams, studied.embed(tokens), blocks).view(len(anchors), size, -1)
        return found if self.anchored else found[:, 1:]

    def scores(self, studied: Studied, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden) if hasattr(self, "lm_head") else studied.head(hidden)

    def drafted(self, studied: Studied, text: list[int], known: Tensor, top_k: int = 0) -> list[int]:
        """The greedy chain behind a text, whose last token is the newest."""
        streams = studied.streams(text, LAYERS)[:-1]
        hidden = self.hidden(studied, streams, text, [len(text) - 1])[0]
        tokens, state = [text[-1]], torch.zeros(RANK)
        for row in hidden:
            base = self.scores(studied, row)
            change, state = self.markov_head(torch.tensor(tokens[-1]), row, state)
            total = base + change
            if top_k:
                outside = torch.ones_like(base, dtype=torch.bool).scatter(0, base.topk(top_k).indices, False)
                total = total.masked_fill(outside, float("-inf"))
            tokens.append(int(known[total.argmax()]))
        return tokens[1:]


def written(directory: Path, formula: Formula, **more: Any) -> Path:
    """The dense layout."""
    config = published_config(Shape(), MASK, [i - 1 for i in LAYERS], architectures=["Qwen3DSparkModel"], **more)
    kind = formula.markov_head.kind
    return export(
        formula,
        {**config, "markov_rank": RANK, "markov_head_type": kind, "sample_from_anchor": formula.anchored},
        directory,
    )


@pytest.fixture(scope="module")
def studied(toy_model: Path) -> Studied:
    return Studied(toy_model, [], 0)


def load(toy_model: Path, drafter: Path, **spec: Any) -> LLM:
    wanted = {"method": "dspark", "model": str(drafter), "num_speculative_tokens": K, **spec}
    return LLM(str(toy_model), device=DEVICE, max_model_len=256, block_size=4, speculative_config=wanted)


def begun(llm: LLM, toy_model: Path) -> Any:
    """A request in the engine, not yet run."""
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    request = llm.intake.requests("one", encoded(toy_model, PROMPTS[:1])[0], params)[0]
    llm.engine.add(request)
    return request


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("anchored", [True, False], ids=["anchored", "fill-in"])
@pytest.mark.parametrize("top_k", [0, 3])
@torch.no_grad()
def test_drafts_are_the_formula(
    toy_model: Path, studied: Studied, tmp_path: Path, kind: str, anchored: bool, top_k: int
) -> None:
    formula = shaken(Formula(kind, anchored), seed=3)
    llm = load(toy_model, written(tmp_path, formula), **({"dspark_draft_topk": top_k} if top_k else {}))
    request = llm.intake.requests(
        "one", encoded(toy_model, PROMPTS[:1])[0], SamplingParams(temperature=0, max_tokens=40)
    )[0]
    llm.engine.add(request)
    for _ in range(3):
        whole_step(llm.engine)
        drafted = llm.engine.state.draft.tokens[request.slot, :K].tolist()
        assert drafted == formula.drafted(studied, request.tokens, torch.arange(VOCAB), top_k)


@torch.no_grad()
def test_a_vocabulary_of_its_own(toy_model: Path, studied: Studied, tmp_path: Path) -> None:
    """Corrections are over the drafter's words, and follow the target's numbers of the words before."""
    formula = shaken(Formula("vanilla", True, vocab=100), seed=4)
    known = torch.arange(0, 200, 2)
    formula.register_buffer("d2t", known - torch.arange(100))
    llm = load(toy_model, written(tmp_path, formula, draft_vocab_size=100))
    request = llm.intake.requests(
        "one", encoded(toy_model, PROMPTS[:1])[0], SamplingParams(temperature=0, max_tokens=9)
    )[0]
    llm.engine.add(request)
    whole_step(llm.engine)
    drafted = llm.engine.state.draft.tokens[request.slot, :K].tolist()
    assert drafted == formula.drafted(studied, request.tokens, known)


@pytest.fixture(scope="module")
def trained(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Knows the target's greedy answers to two prompts by heart."""
    torch.manual_seed(3)
    prompts = encoded(toy_model, PROMPTS[:2])
    studied, formula = Studied(toy_model, prompts, 34), Formula("gated", True)
    jobs = []
    for text, prompt in zip(studied.texts, prompts, strict=True):
        anchors = list(range(len(prompt), len(text) - K))
        ahead = torch.tensor([text[a : a + K + 1] for a in anchors])
        jobs.append((studied.streams(text, LAYERS), text, anchors, ahead))

    def loss() -> Tensor:
        parts = []
        for streams, text, anchors, ahead in jobs:
            hidden = formula.hidden(studied, streams, text, anchors)
            change, _ = formula.markov_head(ahead[:, :-1], hidden, torch.zeros(0))
            parts.append(F.cross_entropy((studied.head(hidden) + change).flatten(0, 1), ahead[:, 1:].flatten()))
        return torch.stack(parts).mean()

    assert overfit(formula, loss, 300) < 0.3
    return written(tmp_path_factory.mktemp("dspark"), formula)


LITERAL = "[(0,), (1,), (0, 0), (1, 0), (0, 0, 0)]"


@pytest.mark.parametrize(
    "spec",
    [{}, {"tree": {"max_nodes": 12, "top_k": 3}}, {"speculative_token_tree": LITERAL, "num_speculative_tokens": 5}],
    ids=["chain", "tree", "literal"],
)
def test_the_gate_and_the_text(toy_model: Path, trained: Path, spec: dict[str, Any]) -> None:
    plain = LLM(str(toy_model), device=DEVICE, max_model_len=256)
    llm = load(toy_model, trained, **spec)
    params = SamplingParams(temperature=0, max_tokens=33, ignore_eos=True)
    assert ids(llm, PROMPTS[:2], params) == ids(plain, PROMPTS[:2], params)
    counted, depth = llm.engine.stats.spec, 3 if "speculative_token_tree" in spec else K
    assert counted.num_accepted_tokens > 0.6 * depth * counted.num_drafts
    mixed = [SamplingParams(temperature=t, seed=5, max_tokens=25, ignore_eos=True) for t in (0, 0.8, 0, 0.8)]
    for sampled in ("greedy", "probabilistic"):
        other = load(toy_model, trained, draft_sample_method=sampled, **spec)
        assert ids(other, PROMPTS[:4], mixed) == ids(plain, PROMPTS[:4], mixed)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"markov_head_type": "odd"}, "markov_head_type='odd'"),
        ({"markov_rank": 7}, "markov_w1"),
        ({"markov_rank": -1}, "markov_rank=-1"),
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash2"),
    ],
)
def test_bad_checkpoints_are_refused(toy_model: Path, tmp_path: Path, more: dict[str, Any], words: str) -> None:
    drafter = written(tmp_path, shaken(Formula("vanilla", True)))
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps(config | more))
    with pytest.raises(ModelError, match=words):
        load(toy_model, drafter)


def test_layers_inside_a_target_are_refused_by_name(toy_model: Path) -> None:
    with pytest.raises(ValueError, match="name a drafter of its own"):
        LLM(str(toy_model), speculative_config={"method": "dspark", "num_speculative_tokens": 3})
