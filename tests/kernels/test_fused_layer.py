"""A layer in one call computes what its steps compute one by one, and treats every row alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numba
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from rows import Segment, give_cache, make_rows, scattered_tables
from tiny_gguf import write_and_convert

from augury.kernels.fused_layer import FusedLayer, FusedLayers
from augury.kernels.step_by_step import StepByStep
from augury.model.dense import Dense
from augury.model.load import load_target
from augury.model.lora import Adapters
from augury.model.target import Target

CPU = torch.device("cpu")
TOKENS = list(range(3, 160))  # more than one panel of rows
CASES: list[tuple[str, Kind, dict[str, Any]]] = [
    ("llama", Kind.Q4_1, {"attention_bias": True}),
    ("llama", Kind.Q8_0, {"tie_word_embeddings": False}),
    ("qwen2", Kind.Q4_0, {}),  # biases on queries, keys and values
    ("qwen3", Kind.Q4_1, {}),  # norms of queries and keys
]


def fused_of(target: Dense) -> list[Any]:
    assert isinstance(target.run_layers, FusedLayers)
    return target.run_layers.layers


def scores(target: Target, *pieces: list[int]) -> torch.Tensor:
    tables = scattered_tables(1, blocks=48)
    give_cache(target, slots=1, blocks=48)
    found, start = [], 0
    for piece in pieces:
        found.append(target.forward(make_rows([Segment(0, start, piece)], tables)).logits)
        start += len(piece)
    return torch.cat(found)


CREW = pytest.param(2, marks=pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one core"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("pool", [CREW, 1])  # a crew, and a loop of two rounds that gets one thread
def test_two_threads_give_the_bits_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: int) -> None:
    monkeypatch.setattr("augury.kernels.machine.DOT_PRODUCTS", True)
    monkeypatch.setattr("augury.kernels.pace.MOST_LOST", float("inf"))  # the machine may be crowded
    _, directory = write_and_convert(tmp_path, "qwen2", Kind.Q4_1)
    target = load_target(directory, "float32", CPU, 256)
    assert isinstance(target, Dense)
    pieces = [TOKENS[:1], TOKENS[1:6], TOKENS[6:70], TOKENS[70:]]

    def by(threads: int, pool: int) -> torch.Tensor:
        monkeypatch.setattr(target._ops, "_threads", pool)
        monkeypatch.setattr(target.run_layers, "threads", threads)
        return torch.cat([scores(target, *pieces), scores(target, TOKENS)])  # all at once are two panels of rows

    assert torch.equal(by(1, 1), by(2, pool))


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(("architecture", "kind", "changes"), CASES)
def test_layers_in_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, kind: Kind, changes: dict[str, Any], fast: bool
) -> None:
    monkeypatch.setattr("augury.kernels.machine.DOT_PRODUCTS", True)
    _, directory = write_and_convert(tmp_path, architecture, kind, **changes)
    whole = load_target(directory, "float32", CPU, 256, fast=fast)
    assert isinstance(whole, Dense) and all(isinstance(layer, FusedLayer) for layer in fused_of(whole))
    monkeypatch.setattr(FusedLayer, "of", lambda *_: None)
    steps = load_target(directory, "float32", CPU, 256, fast=fast)
    fused = scores(whole, TOKENS)
    torch.testing.assert_close(fused, scores(steps, TOKENS), rtol=0, atol=0.05 if fast else 2e-4)
    pieces = [TOKENS[:1], TOKENS[1:6], TOKENS[6:70], TOKENS[70:]]
    assert torch.equal(fused, scores(whole, *pieces))
    if not fast:
        floats = load_target(directory, "float32", CPU, 256, packed=False)
        torch.testing.assert_close(fused, scores(floats, TOKENS), rtol=0, atol=2e-4)


def test_any_stretch_of_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams and logits have the same bits however layers are cut into calls, and where one has another form."""
    monkeypatch.setattr("augury.kernels.machine.DOT_PRODUCTS", True)
    _, directory = write_and_convert(tmp_path, "llama", Kind.Q4_1, num_hidden_layers=5)
    target = load_target(directory, "float32", CPU, 256)
    assert isinstance(target, Dense) and isinstance(target.run_layers, FusedLayers)
    features = (3, *range(-1, 6), 3)

    def streams() -> list[torch.Tensor]:
        give_cache(target, slots=1, blocks=48)
        tables = scattered_tables(1, blocks=48)
        found = target.forward(make_rows([Segment(0, 0, TOKENS[:9])], tables), features)
        give_cache(target, slots=1, blocks=48)
        return [target.forward(make_rows([Segment(0, 0, TOKENS[:9])], tables)).logits, found.logits, *found.features]

    def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
        return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))

    whole = streams()
    assert torch.equal(whole[0], whole[1])
    assert target.run_layers._end == [5] * 5
    for ends in ([1, 2, 3, 4, 5], [2, 2, 5, 5, 5], [4, 4, 4, 4, 5]):
        monkeypatch.setattr(target.run_layers, "_end", ends)
        assert same(streams(), whole)
    target.layers[2].attention.scale *= 1.5  # no longer like the others: it runs by itself, with its own scale
    target.prepare_layers()
    assert isinstance(target.run_layers, FusedLayers) and target.run_layers._end == [2, 2, 3, 5, 5]
    changed = streams()
    assert not torch.equal(changed[0], whole[0]) and torch.equal(changed[4 + 2], whole[4 + 2])
    target.run_layers = StepByStep(target.layers)
    for a, b in zip(changed, streams(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-4)
    target.prepare_layers()
    target.run_layers.layers[2] = target.layers[2]  # of a form that is not compiled
    for a, b in zip(changed, streams(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-4)


def adapted(target: Target) -> Dense:
    """With two adapters on every projection."""
    assert isinstance(target, Dense)
    random, adapters = torch.Generator().manual_seed(1), Adapters(target, 2, 3)
    for place, rank in ((1, 3), (2, 1)):
        factors = {
            (layer, name): (torch.randn(rank, width, generator=random), torch.randn(out, rank, generator=random) / 9)
            for layer, (name, (out, width)) in product(range(target.num_layers), adapters.shapes.items())
        }
        adapters.put(place, factors)
    give_cache(target, slots=3, blocks=48)
    return target


def logits(target: Dense, slots: list[int], adapters: list[int] | None) -> torch.Tensor:
    rows = make_rows([Segment(slot, 0, TOKENS[:20]) for slot in slots], scattered_tables(3, blocks=48))
    of_rows = None if adapters is None else torch.tensor([one for one in adapters for _ in range(20)])
    return target.forward(replace(rows, adapters=of_rows)).logits


def test_adapters_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by steps; a row's bits are those it has alone, and a row of the base has those of an engine without any."""
    monkeypatch.setattr("augury.kernels.machine.DOT_PRODUCTS", True)
    _, directory = write_and_convert(tmp_path, "llama", Kind.Q8_0)
    bare = load_target(directory, "float32", CPU, 256)
    give_cache(bare, slots=3, blocks=48)
    assert isinstance(bare, Dense)
    whole = adapted(load_target(directory, "float32", CPU, 256))
    assert all(isinstance(layer, FusedLayer) for layer in fused_of(whole))
    monkeypatch.setattr(FusedLayer, "of", lambda *_: None)
    steps = adapted(load_target(directory, "float32", CPU, 256))
    mixed = logits(whole, [0, 1, 2], [1, 0, 2])
    torch.testing.assert_close(mixed, logits(steps, [0, 1, 2], [1, 0, 2]), rtol=0, atol=2e-4)
    alone = [logits(whole, [slot], [place]) for slot, place in enumerate((1, 0, 2))]
    assert torch.equal(mixed, torch.cat(alone)) and len({one.sum().item() for one in alone}) == 3
    assert torch.equal(alone[1], logits(whole, [1], None)) and torch.equal(alone[1], logits(bare, [1], None))
