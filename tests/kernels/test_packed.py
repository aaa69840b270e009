"""Packed matrices compute what their float32 twins compute: to the bit in float32, to its precision in integers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from covering import covering
from packed_matrices import packed_matrix, raw_matrix
from rows import Segment, give_cache, make_rows, scattered_tables
from safetensors.numpy import save_file

from augury.kernels import choose
from augury.model.errors import ModelError
from augury.model.gguf_blocks import UNPACK
from augury.model.load import load_target
from augury.model.packed import PACKED_FILE, PackedFile

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", UNPACK)
def test_unpacking_gives_the_dequantised_bits(kind: str) -> None:
    packed, twin = packed_matrix(kind, 12, 96)
    assert torch.equal(packed.unpacked(), twin)


ROWS = [1, 2, 3, 4, 7, 8, 16, 64, 65, 150]
SHAPES = [(4, 96), (30, 96), (257, 96), (30, 1184)]  # one chunk a line, or three


# How a kind is unpacked, how rows go into tiles and how lines are shared out are three steps: each two of them meet.
@pytest.mark.parametrize(("kind", "rows", "shape"), covering(list(UNPACK), ROWS, SHAPES))
def test_products_are_bit_equal_to_the_float_twins(kind: str, rows: int, shape: tuple[int, int]) -> None:
    lines, width = shape
    packed, twin = packed_matrix(kind, lines, width)
    x = torch.from_numpy(np.random.default_rng(rows).standard_normal((rows, packed.width)).astype(np.float32))
    bias = torch.arange(lines, dtype=torch.float32)
    ops = choose(CPU)
    assert torch.equal(ops.packed_linear(x, packed, bias), ops.linear(x, twin, bias))
    assert torch.equal(ops.packed_linear(x, packed), ops.linear(x, twin))


def embedded_logits(directory: Path, packed: bool) -> torch.Tensor:
    target = load_target(directory, "float32", CPU, 64, packed=packed)
    give_cache(target, slots=1)
    return target.forward(make_rows([Segment(0, 0, list(range(40, 60)))], scattered_tables(1))).logits


def test_the_embedded_model_scores_the_same_packed_and_not(
    default_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("augury.kernels.machine.DOT_PRODUCTS", False)  # unpacked in the cache
    assert torch.equal(embedded_logits(default_model, True), embedded_logits(default_model, False))


def test_integers_score_as_float32_does(default_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far apart as float32 sums in two orders are, of logits that reach 20."""
    floats = embedded_logits(default_model, False)
    monkeypatch.setattr("augury.kernels.machine.DOT_PRODUCTS", True)
    integers = embedded_logits(default_model, True)
    assert (integers - floats).abs().max() < 1e-3 and torch.equal(integers.argmax(-1), floats.argmax(-1))


@pytest.mark.parametrize(("packed", "fast"), [(True, False), (False, False), (True, True)])
def test_a_prompt_scores_the_same_in_any_pieces(default_model: Path, packed: bool, fast: bool) -> None:
    """What makes text independent of batch, chunks and preemption: no row's bits depend on its neighbours."""
    target = load_target(default_model, "float32", CPU, 256, packed=packed, fast=fast)
    tokens, tables = list(range(100, 240)), scattered_tables(2, blocks=40)
    give_cache(target, slots=2, blocks=40)
    whole = target.forward(make_rows([Segment(0, 0, tokens)], tables)).logits
    for start in range(0, len(tokens), 33):
        part = tokens[start : start + 33]
        logits = target.forward(make_rows([Segment(1, start, part)], tables)).logits
        assert torch.equal(logits, whole[start : start + len(part)])


def test_a_torn_packed_file_is_named(tmp_path: Path) -> None:
    (tmp_path / PACKED_FILE).write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(ModelError, match=r"packed\.safetensors"):
        PackedFile(tmp_path)


def test_matrices_of_two_kinds_are_stacked_in_the_wider_form(tmp_path: Path) -> None:
    """As in Q4_K_M, whose values have six bits and whose queries and keys have four."""
    kinds, raws, twins = {"q": "Q4_K", "v": "Q6_K"}, {}, []
    for name, kind in kinds.items():
        raw, twin = raw_matrix(kind, 8, 256)
        raws[name] = raw
        twins.append(twin)
    save_file(raws, tmp_path / PACKED_FILE, {"kinds": json.dumps(kinds)})
    file = PackedFile(tmp_path)
    both, one = file.matrix(("q", "v")), file.matrix(("q",))
    assert both is not None and one is not None and file.matrix(("q", "absent")) is None
    assert both.codes.dtype == torch.int8 and one.codes.dtype == torch.uint8
    assert torch.equal(both.unpacked(), torch.cat(twins)) and torch.equal(one.unpacked(), twins[0])
