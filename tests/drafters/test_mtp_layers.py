"""Targets with several MTP layers: every draft against the layers' formulas over whole texts without a cache.

Guess j is layer j's: it reads the whole text and the guesses before its own, shifted by j, beside the states of the
layer above. One target's layers know a text by heart, so that drafts are accepted there and rejected elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import byte_tokenizer
from gate import Studied, overfit
from generating import DEVICE, PROMPTS, ids
from mtp_cases import BY_NAME, FOREIGN, Mtp, foreign_block, foreign_layer, make_layers, with_foreign_layer, with_layer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from augury import LLM, SamplingParams
from augury.drafters.base import DraftInput
from augury.model.errors import ModelError
from augury.model.target import NORMED
from augury.verify.tree import Draft

EDGE = 1e-3  # what an edge of a tree costs, see drafters/grow.py
CLOSE = 2e-3  # of two scores that may have changed places
Layer = Callable[[Tensor, Tensor], Tensor]
TREE = {"tree": {"max_nodes": 7, "top_k": 2}}
SHAPE: list[tuple[int, ...]] = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]


class Formula:
    """Scores of the next guess after a text and the guesses so far."""

    def __init__(self, features: Callable[[list[int]], Tensor], embed: Any, head: Any, layers: list[Layer]) -> None:
        self.features, self.embed, self.head, self.layers = features, embed, head, layers
        self._text, self._known = list[int](), dict[tuple[int, ...], Tensor]()

    @torch.no_grad()
    def scores(self, text: list[int], guessed: tuple[int, ...] = ()) -> Tensor:
        """Layer after layer over the whole text; the last row's scores."""
        if text != self._text:
            self._text, self._known = text, {}
        return self.head(self._states(guessed)[-1:])[-1]

    def _states(self, guessed: tuple[int, ...]) -> Tensor:
        """What comes out of the layer that makes the next guess; kept, since longer guesses begin with it."""
        if guessed not in self._known:
            text, step = self._text, len(guessed)
            below = self._states(guessed[:-1]) if guessed else self.features(text)[: len(text) - 1]
            tokens = torch.tensor([*text, *guessed])[1 + step : len(text) + step]
            self._known[guessed] = self.layers[step % len(self.layers)](self.embed(tokens), below)
        return self._known[guessed]

    def best_tree(self, text: list[int], depth: int, top_k: int, most: int) -> dict[tuple[int, ...], float]:
        """The dynamic tree by its definition."""
        level, found = {(): 0.0}, dict[tuple[int, ...], float]()
        for _ in range(depth):
            inner = sorted(level, key=lambda path: -level[path])[:top_k]
            laws = {path: self.scores(text, path).float().log_softmax(0) for path in inner}
            level = {
                (*path, t): level[path] + float(laws[path][t]) - EDGE
                for path in inner
                for t in laws[path].topk(top_k).indices.tolist()
            }
            found |= level
        return {path: found[path] for path in sorted(found, key=lambda path: -found[path])[:most]}


class Watch:
    """Keeps every draft of an engine, with the text that it continues."""

    def __init__(self, llm: LLM) -> None:
        self.drafts: list[tuple[list[int], list[int], list[int]]] = []  # text, tokens, parents
        drafter: Any = llm.engine.drafter
        propose = drafter.propose

        def watched(inputs: DraftInput) -> Draft:
            draft = propose(inputs)
            for g, (slot, length, count) in enumerate(
                zip(inputs.slots.tolist(), inputs.lengths.tolist(), draft.count.tolist(), strict=True)
            ):
                if count > 0:
                    text = inputs.history[slot, :length].tolist()
                    self.drafts.append((text, draft.tokens[g, :count].tolist(), draft.parents[g, :count].tolist()))
            return draft

        drafter.propose = watched


def paths_of(tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def check_chain(formula: Formula, text: list[int], tokens: list[int]) -> None:
    for i, token in enumerate(tokens):
        scores = formula.scores(text, tuple(tokens[:i]))
        assert float(scores[token]) > float(scores.max()) - CLOSE, (len(text), i)


def check_tree(formula: Formula, text: list[int], tokens: list[int], parents: list[int], depth: int) -> None:
    if len(tokens) < TREE["tree"]["max_nodes"]:
        return  # the end of a request leaves no room for the whole tree
    want = formula.best_tree(text, depth, TREE["tree"]["top_k"], TREE["tree"]["max_nodes"])
    for path in paths_of(tokens, parents):
        score = sum(float(formula.scores(text, path[:i]).log_softmax(0)[t]) - EDGE for i, t in enumerate(path))
        assert score > min(want.values()) - CLOSE, (len(text), path)


def watched_run(directory: Path, spec: dict[str, Any], prompts: list[Any], length: int) -> tuple[LLM, Watch]:
    """In chunks of 7 and blocks of 4, twice: the second time from the prefix cache. The text must be the target's."""
    # A replayed step is not seen by Watch.
    shared: dict[str, Any] = {"device": DEVICE, "max_model_len": 128, "block_size": 4, "enforce_eager": True}
    params = [
        SamplingParams(temperature=0.0 if i % 2 == 0 else 0.7, seed=i, max_tokens=length, ignore_eos=True)
        for i in range(len(prompts))
    ]
    want = ids(LLM(str(directory), **shared), prompts, params)
    llm = LLM(
        str(directory),
        long_prefill_token_threshold=7,
        max_num_seqs=3,
        speculative_config={"method": "mtp", **spec},
        **shared,
    )
    watch = Watch(llm)
    assert ids(llm, prompts, params) == want
    assert ids(llm, prompts, params) == want
    assert len(watch.drafts) > 10
    return llm, watch


@pytest.fixture(scope="module")
def studied(toy_model: Path) -> Studied:
    return Studied(toy_model, [[64, 65, 66, 67]], 40)


def formula_of(studied: Studied, modules: list[Mtp]) -> Formula:
    return Formula(lambda text: studied.streams(text, (NORMED,)), studied.embed, studied.head, list(modules))


@pytest.mark.parametrize("name", BY_NAME)
def test_every_layout(
    tmp_path: Path, toy_model: Path, studied: Studied, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(21)
    modules = make_layers(studied.config, BY_NAME[name], 3)
    directory = with_layer(toy_model, tmp_path / "m", modules)
    if name == "Qwen3-Next":
        say_it_is_qwen(monkeypatch)
    llm, watch = watched_run(directory, {"num_speculative_tokens": 3}, PROMPTS[:4], 8)
    drafter: Any = llm.engine.drafter
    assert drafter.head.layout.name == name and len(drafter.head.layers) == 3
    formula = formula_of(studied, modules)
    for text, tokens, _ in watch.drafts[::3]:
        check_chain(formula, text, tokens)


def say_it_is_qwen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its layouts' norms, stored around zero, the target's type alone tells."""
    from augury.model.heads import mtp

    read = mtp.read_config

    def as_qwen(path: Path) -> Any:
        config = read(path)
        config.model_type = "qwen3_next"
        return config

    monkeypatch.setattr(mtp, "read_config", as_qwen)


@pytest.fixture(scope="module")
def knowing(studied: Studied) -> list[Mtp]:
    """Three layers that know a text by heart, each its own distance ahead."""
    torch.manual_seed(5)
    modules = make_layers(studied.config, BY_NAME["DeepSeek"], 3)
    text = torch.tensor(studied.texts[0])
    embedded, streams = studied.embed(text), studied.streams(text.tolist(), (NORMED,))

    def loss() -> Tensor:
        states, total = streams, torch.zeros(())
        for i, module in enumerate(modules):
            states = module(embedded[1 + i :], states[: len(text) - 1 - i])
            total = total + F.cross_entropy(studied.head(states[:-1]), text[2 + i :])
        return total

    overfit(nn.ModuleList(modules), loss, 200)
    return modules


@pytest.mark.parametrize("spec", [{"num_speculative_tokens": k} for k in (1, 2, 3, 6)], ids=str)
def test_chains_that_are_accepted(
    tmp_path: Path, toy_model: Path, studied: Studied, knowing: list[Mtp], spec: dict[str, Any]
) -> None:
    """Fewer guesses than layers, as many, and twice as many: then it begins again with the first layer."""
    directory = with_layer(toy_model, tmp_path / "m", knowing)
    prompts = [{"prompt_token_ids": studied.texts[0][:4]}, *PROMPTS[:3]]
    llm, watch = watched_run(directory, spec, prompts, 24)
    formula = formula_of(studied, knowing)
    for text, tokens, _ in watch.drafts:
        check_chain(formula, text, tokens)
    assert llm.engine.stats.spec.num_accepted_tokens > 0


@pytest.mark.parametrize(
    "spec", [{"num_speculative_tokens": 3, **TREE}, {"speculative_token_tree": str(SHAPE)}], ids=["best first", "given"]
)
def test_trees(tmp_path: Path, toy_model: Path, studied: Studied, knowing: list[Mtp], spec: dict[str, Any]) -> None:
    directory = with_layer(toy_model, tmp_path / "m", knowing)
    prompts = [{"prompt_token_ids": studied.texts[0][:4]}, *PROMPTS[:3]]
    llm, watch = watched_run(directory, spec, prompts, 24)
    formula = formula_of(studied, knowing)
    drafter: Any = llm.engine.drafter
    assert llm.engine.stats.spec.num_accepted_tokens > 0 and drafter.head.guesses == 3
    for text, tokens, parents in watch.drafts[::2]:
        if "tree" in spec:
            check_tree(formula, text, tokens, parents, 3)
        else:
            check_ranks(formula, text, tokens, SHAPE)


def check_ranks(formula: Formula, text: list[int], tokens: list[int], shape: list[tuple[int, ...]]) -> None:
    named: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}
    for path, token in zip(shape, tokens, strict=False):
        scores = formula.scores(text, named[path[:-1]])
        assert abs(float(scores[token]) - float(scores.topk(path[-1] + 1).values[-1])) < CLOSE, (len(text), path)
        named[path] = (*named[path[:-1]], token)


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("spec", [{"num_speculative_tokens": 2}, {"num_speculative_tokens": 2, **TREE}], ids=str)
def test_layers_with_experts_or_latent_attention(tmp_path: Path, name: str, spec: dict[str, Any]) -> None:
    whole, parts = with_foreign_layer(FOREIGN[name], tmp_path, 2)
    byte_tokenizer().save_pretrained(tmp_path)  # type: ignore[attr-defined]

    @torch.no_grad()
    def features(text: list[int]) -> Tensor:
        x, positions = whole.model.embed_tokens(torch.tensor(text)), torch.arange(len(text))[None]
        for i in range(2):
            x = foreign_block(whole, i, x, positions)
        return whole.model.norm(x)

    layers: list[Layer] = [lambda e, h, i=i: foreign_layer(whole, parts[i], i, e, h) for i in range(2)]  # type: ignore[misc]
    formula = Formula(features, whole.model.embed_tokens, whole.lm_head, layers)
    _, watch = watched_run(tmp_path, spec, PROMPTS[:3], 8)
    for text, tokens, parents in watch.drafts[::3]:
        if "tree" in spec:
            check_tree(formula, text, tokens, parents, 2)
        else:
            check_chain(formula, text, tokens)


def test_files_and_config_that_disagree(
    tmp_path: Path, toy_model: Path, studied: Studied, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(3)
    directory = with_layer(toy_model, tmp_path / "m", make_layers(studied.config, BY_NAME["MiMo"], 2))
    raw, spec = json.loads((directory / "config.json").read_text()), {"method": "mtp", "num_speculative_tokens": 1}

    def load(layers: int) -> LLM:
        (directory / "config.json").write_text(json.dumps(raw | {"num_nextn_predict_layers": layers}))
        return LLM(str(directory), max_model_len=64, speculative_config={**spec, "num_speculative_tokens": layers})

    drafter: Any = load(1).engine.drafter
    assert len(drafter.head.layers) == 1 and "2 MTP layers; 1 run" in caplog.text
    with pytest.raises(ModelError, match=r"config\.json says 3 MTP layers, the files hold 2"):
        load(3)
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.mtp_layers.1.self_attn.k_proj.weight"]
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="k_proj"):
        load(2)
