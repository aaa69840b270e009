"""Medusa: heads against their formula, every published layout, trees against best-first search."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from formulas_medusa import Native, Original, best_paths
from gate import Studied, write
from hypothesis import given, settings
from hypothesis import strategies as st
from medusa_cases import CONFIG, HEADS, ORDERED, SHAPES, SIZE, VOCABULARY, Tensors, drafted, native_names
from safetensors.torch import load_file
from torch import Tensor, nn

from augury.config.resolve import resolve
from augury.drafters.medusa import LiteralTree, MarginalTree, contenders
from augury.drafters.stateless import written_paths
from augury.model.errors import ModelError
from augury.model.heads.medusa import MedusaHeads
from augury.model.load import load_target

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
CPU = torch.device("cpu")


def scattered(module: nn.Module, seed: int = 3) -> Any:
    """The module with weights that matter everywhere."""
    torch.manual_seed(seed)
    for tensor in module.parameters():
        nn.init.normal_(tensor, 0.0, 0.2)
    return module


@pytest.fixture(scope="module")
def target(toy_model: Path) -> Any:
    return load_target(toy_model, "float32", "cpu")


@pytest.fixture(scope="module")
def studied(toy_model: Path) -> Studied:
    return Studied(toy_model, [[64, 65, 66, 67], [70, 71, 72]], 40)


def load(directory: Path, target: Any, heads: int = HEADS) -> MedusaHeads:
    return MedusaHeads.load(directory, target, torch.float32, heads)


def rows(count: int = 5) -> Tensor:
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(9))


def same(found: list[Tensor], wanted: Tensor) -> None:
    torch.testing.assert_close(torch.stack(found), wanted.detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layers", [1, 3])
def test_original_heads_are_their_formula(tmp_path: Path, target: Any, layers: int) -> None:
    """Biases included, which vLLM drops."""
    module = scattered(Original(HEADS, layers, SIZE, VOCABULARY))
    heads = load(write(tmp_path, module.state_dict(), {**CONFIG, "medusa_num_layers": layers}), target)
    same(heads.scores(rows(), HEADS), module.scores(rows()))
    same(heads.scores(rows(), 2), module.scores(rows())[:2])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_native_heads_are_their_formula(tmp_path: Path, target: Any, layers: int, bias: bool) -> None:
    module = scattered(Native(HEADS, layers, SIZE, VOCABULARY, bias))
    config = {"model_type": "medusa", "num_heads": HEADS, "num_hidden_layers": layers, "medusa_fc_bias": bias}
    same(load(write(tmp_path, module.state_dict(), config), target).scores(rows(), HEADS), module.scores(rows()))


@pytest.mark.parametrize("stored", ["whole", "cut"])
def test_a_reduced_vocabulary(tmp_path: Path, target: Any, stored: str) -> None:
    module = scattered(Native(HEADS, 1, SIZE, VOCABULARY))
    tokens = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(1))[:100]
    tensors = {**module.state_dict(), "token_map": tokens}
    if stored == "cut":
        tensors |= {name: t[tokens] for name, t in tensors.items() if name.startswith("lm_heads")}
    config = {"model_type": "medusa", "vocab_size": VOCABULARY, "truncated_vocab_size": 100}
    heads = load(write(tmp_path, tensors, config), target)
    found = heads.scores(rows(), HEADS)
    same(found, module.scores(rows())[:, :, tokens])
    assert heads.named(found[0].argmax(1)).tolist() == tokens[module.scores(rows())[0][:, tokens].argmax(1)].tolist()


@pytest.mark.parametrize("where", ["lm_head.weight", "lm_heads.0.weight", "the target"])
@pytest.mark.parametrize("truncated", [False, True])
def test_one_matrix_for_all_heads(tmp_path: Path, target: Any, studied: Studied, where: str, truncated: bool) -> None:
    module = scattered(Native(HEADS, 1, SIZE, VOCABULARY))
    shared = studied.model.get_output_embeddings().weight if where == "the target" else module.lm_heads[0].weight
    tensors = {name: t for name, t in module.state_dict().items() if name.startswith("blocks")}
    if where != "the target":
        tensors[where] = shared
    config: dict[str, Any] = {"model_type": "medusa", "original_lm_head": True}
    tokens = torch.arange(VOCABULARY)
    if truncated:
        tokens = tokens[5::3]
        tensors["token_map"], config["truncated_vocab_size"] = tokens, len(tokens)
    found = load(write(tmp_path, tensors, config), target).scores(rows(), HEADS)
    wanted = torch.stack([block(rows()) @ shared[tokens].T for block in module.blocks])
    torch.testing.assert_close(torch.stack(found), wanted.detach(), atol=1e-3, rtol=1e-4)


def test_every_published_layout_loads_alike(tmp_path: Path, toy_model: Path, target: Any) -> None:
    module = scattered(Original(HEADS + 1, 1, SIZE, VOCABULARY))  # one head more than is asked for
    tensors = module.state_dict()
    native = {"model_type": "medusa", "num_heads": 5, "num_hidden_layers": 1, "hidden_size": SIZE}
    backbone = load_file(toy_model / "model.safetensors")
    whole = json.loads((toy_model / "config.json").read_text()) | {"medusa_num_heads": 5, "medusa_num_layers": 1}
    inside = {f"medusa_head.{name}": t for name, t in tensors.items()} | {**backbone, "lm_head.weight": torch.zeros(2)}
    prefixed = {f"medusa_heads.{name}": t for name, t in native_names(tensors, 1).items()}
    layouts = {
        "original": write(tmp_path / "a", tensors, CONFIG, "medusa_lm_head.pt"),
        "safetensors": write(tmp_path / "b", tensors, CONFIG, "medusa_lm_head.safetensors"),
        "medusa 2": write(tmp_path / "c", inside, whole),
        "medusa 2 pickled": write(tmp_path / "d", inside, whole, "pytorch_model.bin"),
        "native": write(tmp_path / "e", native_names(tensors, 1), native),
        "native prefixed": write(tmp_path / "f", prefixed, native),
    }
    wanted = module.scores(rows())[:HEADS]
    first = torch.stack(load(layouts["original"], target).scores(rows(), HEADS))
    same(list(first), wanted)
    for name, directory in layouts.items():
        assert torch.equal(torch.stack(load(directory, target).scores(rows(), HEADS)), first), name


class Evil:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


def test_bad_heads_are_refused(tmp_path: Path, target: Any) -> None:
    good = scattered(Original(HEADS, 1, SIZE, VOCABULARY)).state_dict()
    native = {"model_type": "medusa", "num_hidden_layers": 1}
    mapped = native_names(good, 1)

    def broken(name: str, tensors: Tensors, config: dict[str, Any] = CONFIG, **changes: Tensor) -> Path:
        return write(tmp_path / name, {**tensors, **{k.replace("_dot_", "."): v for k, v in changes.items()}}, config)

    def without(tensors: Tensors, *names: str) -> Tensors:
        return {name: t for name, t in tensors.items() if name not in names}

    small = {**native, "truncated_vocab_size": 100}
    narrow = scattered(Original(HEADS, 1, 48, VOCABULARY)).state_dict()
    short = scattered(Original(HEADS, 1, SIZE, 200)).state_dict()
    fewer = scattered(Original(3, 1, SIZE, VOCABULARY)).state_dict()
    cases = [
        (broken("missing", without(good, "2.0.linear.weight")), "missing: 2.0.linear.weight"),
        (broken("no bias", without(good, "1.0.linear.bias")), "missing: 1.0.linear.bias"),
        (broken("no matrix", without(good, "3.1.weight")), "missing: 3.1.weight"),
        (broken("extra", good, more=torch.zeros(2)), "unexpected: more"),
        (broken("deeper", good, CONFIG | {"medusa_num_layers": 2}), "missing: 0.1.linear"),
        (broken("hidden", narrow), r"0.0.linear.weight is \[48, 48\], not \[64, 64\]"),
        (broken("vocabulary", short), r"0.1.weight is \[200, 64\], not \[260, 64\]"),
        (broken("fewer", fewer), "has 3 Medusa heads.*drafts 4 tokens deep.*to 3 or less"),
        (broken("none", {"fc.weight": torch.zeros(2, 2)}), "holds no Medusa heads"),
        (broken("both", good | mapped), "under several names"),
        (broken("no map", mapped, small), "token_map is missing"),
        (broken("long map", mapped, small, token_map=torch.arange(99)), "has 99 entries, its config says 100"),
        (broken("far map", mapped, small, token_map=torch.arange(100) + 161), "outside the target's vocabulary of 260"),
        (broken("said bias", without(mapped, *[n for n in mapped if "bias" in n]), native | {"medusa_fc_bias": True}),
         "missing: blocks.0.layers.0.bias"),
    ]  # fmt: skip
    cut = broken("cut", good) / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:1000])
    torn = write(tmp_path / "torn", good, CONFIG, "medusa_lm_head.pt") / "medusa_lm_head.pt"
    torn.write_bytes(torn.read_bytes()[:5000])
    evil = write(tmp_path / "evil", {}, CONFIG, "medusa_lm_head.pt") / "medusa_lm_head.pt"
    evil.write_bytes(pickle.dumps({"0.0.linear.weight": Evil()}))
    cases += [(cut.parent, "cut short"), (torn.parent, "cut short"), (evil.parent, "could run code")]
    for directory, says in cases:
        with pytest.raises(ModelError, match=says):
            load(directory, target)


def test_the_public_path_says_what_is_wrong(toy_model: Path, tmp_path: Path) -> None:
    fewer = write(tmp_path / "fewer", scattered(Original(2, 1, SIZE, VOCABULARY)).state_dict(), CONFIG)
    with pytest.raises(ValueError, match="has 2 Medusa heads"):
        drafted(toy_model, fewer)
    with pytest.raises(ValueError, match="nowhere/medusa"):
        drafted(toy_model, Path("nowhere/medusa"))
    with pytest.raises(ValueError, match="300 best tokens; there are 260"):
        drafted(toy_model, fewer, num_speculative_tokens=1, speculative_token_tree="[(299,)]")


@settings(max_examples=60, deadline=None)
@given(
    depth=st.integers(1, 5), top_k=st.integers(1, 6), nodes=st.integers(1, 40), seed=st.integers(0, 999),
    sharpness=st.sampled_from([0.0, 0.1, 1.0, 5.0]),
)  # fmt: skip
def test_marginal_trees_are_best_first(depth: int, top_k: int, nodes: int, seed: int, sharpness: float) -> None:
    """The sort over contenders finds what best-first search finds one by one, ties and all."""
    generator = torch.Generator().manual_seed(seed)
    scores = [torch.randn(3, 8, generator=generator) * sharpness for _ in range(depth)]
    tokens, parents = MarginalTree(nodes, top_k, depth, CPU).grow(scores)
    for g in range(3):
        best = [s[g].log_softmax(0).clamp(max=0).topk(top_k) for s in scores]
        laws = [b.values.double().tolist() for b in best]
        wanted = best_paths(laws, top_k, nodes)
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(tokens[g].tolist(), parents[g].tolist(), strict=True):
            assert parent < len(paths)  # parents come first
            above = paths[parent] if parent >= 0 else ()
            paths.append((*above, best[len(above)].indices.tolist().index(token)))
        assert len(set(paths)) == len(paths) == len(wanted)
        chances = [sum(laws[d][rank] for d, rank in enumerate(path)) for path in paths]
        assert chances == pytest.approx([chance for _, chance in wanted], abs=1e-4)


def test_contenders_are_few_and_enough() -> None:
    assert contenders(3, 4, 2) == [(0,), (1,), (2,), (0, 0), (0, 1)]
    assert contenders(2, 1, 5) == [(0,), (0, 0)]
    assert len(contenders(63, 10, 5)) == 1702  # of 111,110


def test_a_written_tree_takes_the_ranks_it_names() -> None:
    paths = written_paths(resolve({"method": "medusa", "model": "x", **SHAPES["written tree"]}))
    assert paths == ORDERED
    scores = [torch.randn(2, 30, generator=torch.Generator().manual_seed(d)) for d in range(4)]
    tokens, parents = LiteralTree(paths, 30, CPU).grow(scores)
    ranked = [s.argsort(1, descending=True) for s in scores]
    for n, path in enumerate(paths):
        assert tokens[:, n].tolist() == ranked[len(path) - 1][:, path[-1]].tolist()
        assert parents[:, n].tolist() == [paths.index(path[:-1]) if len(path) > 1 else -1] * 2
