"""Draft trees from heads and draft models: the growth itself, and the text that comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from eagle_cases import train_eagle3
from gate import Studied
from generating import DEVICE, PROMPTS, ids
from hypothesis import given, settings
from hypothesis import strategies as st
from shallow import shallow_copy

from augury import LLM, SamplingParams
from augury.drafters.grow import grow_best, grow_fixed, root_level

VOCAB = 6


def table(seed: int) -> torch.Tensor:
    """A drafter whose next-token scores hang on the last two tokens alone, [V, V, V]."""
    return torch.randn(VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def brute_force(
    scores: torch.Tensor, start: tuple[int, int], depth: int, top_k: int, most: int
) -> dict[tuple[int, ...], float]:
    """The dynamic tree by its definition: each level's best top_k nodes have top_k children; keep the best `most`."""
    levels, found = [{(): 0.0}], {}
    for _ in range(depth):
        inner = sorted(levels[-1], key=lambda p: -levels[-1][p])[:top_k]
        grown = {}
        for path in inner:
            a, b = (*start, *path)[-2:]
            law = scores[a, b].log_softmax(0)
            for token in law.topk(top_k).indices.tolist():
                grown[(*path, token)] = levels[-1][path] + float(law[token]) - 1e-3
        levels.append(grown)
        found |= grown
    best = sorted(found, key=lambda p: -found[p])[:most]
    return {path: found[path] for path in best}


def runner(scores: torch.Tensor, groups: int):
    """A `Run` over the table; the state of a node is (its parent's token, its own)."""

    def run(tokens, states, bits, depth, number):  # type: ignore[no-untyped-def]
        onward = torch.stack([states[..., 1], tokens.float()], dim=-1)
        assert all(bin(int(b)).count("1") == depth for b in bits.flatten())
        return scores[onward[..., 0].long(), onward[..., 1].long()], onward

    return run


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 20))
def test_the_best_tree_is_the_best_by_definition(seed: int, depth: int, top_k: int, most: int) -> None:
    scores = table(seed)
    starts = [(0, 1), (3, 3)]
    root = root_level(torch.stack([scores[a, b] for a, b in starts]), torch.tensor(starts).float())
    budget = torch.tensor([most, most])
    draft = grow_best(root, runner(scores, 2), depth, top_k, most, budget)
    for g, start in enumerate(starts):
        want = brute_force(scores, start, depth, top_k, most)
        paths: list[tuple[int, ...]] = []
        for i in range(int(draft.count[g])):
            parent = int(draft.parents[g, i])
            assert parent < i
            paths.append((*(paths[parent] if parent >= 0 else ()), int(draft.tokens[g, i])))
        assert set(paths) == set(want)


def told(*probabilities: float) -> torch.Tensor:
    """A table that always says the same of its first tokens."""
    line = torch.full((VOCAB,), -50.0)
    line[: len(probabilities)] = torch.tensor(probabilities).log()
    return line.expand(VOCAB, VOCAB, VOCAB)


def grown(scores: torch.Tensor, depth: int, most: int) -> tuple[list[int], list[int]]:
    """Tokens and parents of one tree with two children a node."""
    root = root_level(scores[0, 0][None], torch.zeros(1, 2))
    draft = grow_best(root, runner(scores, 1), depth, 2, most, torch.tensor([most]))
    return draft.tokens[0].tolist(), draft.parents[0].tolist()


def test_equals_keep_the_order_in_which_they_were_made() -> None:
    """A head that cannot decide: all nodes of a level are exactly tied, and a level comes before the next."""
    _, parents = grown(told(0.5, 0.5), 3, 10)
    assert parents == [-1, -1, 0, 0, 1, 1, 2, 2, 3, 3]


def test_of_two_that_are_nearly_tied_the_one_nearer_to_the_root_comes_first() -> None:
    scores = told(0.6, 0.4).clone()
    scores[0, 0, :2] = torch.tensor([0.667, 0.333]).log()  # below the likelier one: 0.6 * 0.667 is more than 0.4
    root = root_level(told(0.6, 0.4)[0, 0][None], torch.zeros(1, 2))
    draft = grow_best(root, runner(scores, 1), 2, 2, 4, torch.tensor([4]))
    assert draft.tokens[0, :3].tolist() == [0, 1, 0] and draft.parents[0, :3].tolist() == [-1, -1, 0]


def test_a_tree_of_given_shape_takes_children_by_rank() -> None:
    scores, paths = table(1), [(0,), (1,), (2,), (0, 0), (0, 2), (1, 1), (0, 0, 0)]
    root = root_level(scores[0, 1][None], torch.tensor([[0.0, 1.0]]))
    draft = grow_fixed(root, runner(scores, 1), paths, torch.tensor([7]))
    assert draft.parents.tolist() == [[-1, -1, -1, 0, 0, 1, 3]]
    for i, path in enumerate(paths):
        tokens = [0, 1]
        for rank in path:
            tokens.append(int(scores[tokens[-2], tokens[-1]].topk(VOCAB).indices[rank]))
        assert int(draft.tokens[0, i]) == tokens[-1]


@pytest.fixture(scope="module")
def weak(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shallow_copy(toy_model, [0], tmp_path_factory.mktemp("weak"))


@pytest.fixture(scope="module")
def head(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_eagle3(tmp_path_factory.mktemp("head"), Studied(toy_model, [[64, 65, 66, 67], [70, 71, 72]], 40))


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
@pytest.mark.parametrize(
    "shape",
    [
        {"num_speculative_tokens": 4, "tree": {"max_nodes": 12, "top_k": 3}},
        {"speculative_token_tree": "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]"},
    ],
    ids=["best first", "given"],
)
def test_trees_change_no_text(toy_model: Path, weak: Path, head: Path, method: str, shape: dict) -> None:
    plain = LLM(str(toy_model), device=DEVICE, max_model_len=256)
    spec = {"method": method, "model": str(weak if method == "draft_model" else head), **shape}
    llm = LLM(str(toy_model), device=DEVICE, max_model_len=256, block_size=4, speculative_config=spec)
    chain = LLM(
        str(toy_model),
        max_model_len=256,
        speculative_config={k: v for k, v in spec.items() if "tree" not in k} | {"num_speculative_tokens": 3},
    )
    for temperature in (0.0, 0.8):
        params = [SamplingParams(temperature=temperature, seed=i, max_tokens=30, ignore_eos=True) for i in range(8)]
        want = ids(plain, PROMPTS, params)
        assert ids(llm, PROMPTS, params) == want
        assert ids(llm, PROMPTS, params) == want
        assert ids(chain, PROMPTS, params) == want
    per_step = [x.engine.stats.spec.num_accepted_tokens / x.engine.stats.spec.num_drafts for x in (llm, chain)]
    assert per_step[0] > per_step[1]  # more guesses, more of them right
