"""Matrices of heads in bytes: how far they are from what they stand for, and that only large ones change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from random_drafters import drafter
from tiny_gguf import write_and_convert

from augury import LLM, SamplingParams
from augury.kernels import choose
from augury.kernels.fused_layer import FusedLayer, FusedLayers
from augury.kernels.tiles import Tiled
from augury.kernels.unpack import BLOCK
from augury.model.dense import Dense
from augury.model.heads import lighter
from augury.model.heads.block import BlockLayers
from augury.model.heads.eagle3 import Eagle3Head
from augury.model.layers import Layer, Linear, PackedLinear
from augury.model.load import load_target
from augury.model.rounded import rounded


def random(lines: int, width: int) -> torch.Tensor:
    spread = torch.randn(lines, width // BLOCK, 1, generator=torch.Generator().manual_seed(2)).exp()
    return (torch.randn(lines, width // BLOCK, BLOCK, generator=torch.Generator().manual_seed(1)) * spread).flatten(1)


def test_a_weight_is_off_by_half_a_step_at_most() -> None:
    weight = random(40, 96)
    weight[3, 32:64] = 0
    back = rounded(weight, "int8", "it").unpacked()
    steps = weight.view(40, 3, BLOCK).abs().amax(-1, keepdim=True) / 127
    assert bool(((back - weight).view(40, 3, BLOCK).abs() <= steps * 0.5001).all())
    assert bool((back[3, 32:64] == 0).all())


def test_a_weight_in_half_a_byte_is_off_by_half_a_step_at_most() -> None:
    weight = random(40, 96)
    weight[3, 32:64] = 0.25  # all alike: no step at all
    back = rounded(weight, "int4", "it").unpacked()
    blocks = weight.view(40, 3, BLOCK)
    steps = (blocks.amax(-1, keepdim=True) - blocks.amin(-1, keepdim=True)) / 15
    assert bool(((back - weight).view(40, 3, BLOCK).abs() <= steps * 0.5001 + 1e-6).all())
    assert bool((back[3, 32:64] == 0.25).all())


def test_only_large_matrices_on_a_cpu_change() -> None:
    ops = choose(torch.device("cpu"))
    lines = lighter.LARGE // 96 + 1
    small, large = Linear(ops, random(40, 96)), Linear(ops, random(lines, 96), torch.ones(lines))
    assert lighter.lighter(small) is small
    uneven = Linear(ops, torch.randn(lighter.LARGE // 90 + 1, 90))
    assert lighter.lighter(uneven) is uneven
    half = Linear(ops, random(lines, 96).bfloat16())
    assert lighter.lighter(half) is half
    packed = lighter.lighter(large)
    assert isinstance(packed, PackedLinear)
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(3))
    assert (packed(x) - large(x)).abs().max() < 0.03 * large(x).abs().max()
    assert torch.equal(packed(x)[2], packed(x[2:3])[0])  # a row's bits are its own


def test_text_is_the_targets_with_a_head_in_bytes(
    toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lighter, "LARGE", 1)
    spec = {"method": "eagle3", "model": str(drafter(toy_model, "eagle3", 1, tmp_path)), "num_speculative_tokens": 3}
    llm, plain = LLM(str(toy_model), device="cpu", speculative_config=spec), LLM(str(toy_model), device="cpu")
    assert llm.engine.drafter is not None
    head = llm.engine.drafter.network
    assert isinstance(head, Eagle3Head)
    assert isinstance(head.parts.fc, PackedLinear)
    params = [SamplingParams(temperature=t, seed=5, max_tokens=24, ignore_eos=True) for t in (0.0, 0.8)]
    prompts = [{"prompt_token_ids": [65, 66, 67]}] * 2
    said = [
        [out.outputs[0].token_ids for out in each.generate(prompts, params, use_tqdm=False)] for each in (llm, plain)
    ]
    assert said[0] == said[1]


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(("kind", "codes"), [(Kind.Q4_1, np.uint8), (Kind.Q8_0, np.int8)])
def test_a_heads_layer_takes_the_form_of_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, codes: type, fast: bool
) -> None:
    """Bits and digits are those of the model, so that the code that runs its layers runs this one, too."""
    monkeypatch.setattr("augury.kernels.machine.DOT_PRODUCTS", True)
    monkeypatch.setattr(lighter, "LARGE", 1)
    _, model = write_and_convert(tmp_path, "llama", kind)
    spec = {"method": "eagle3", "model": str(drafter(model, "eagle3", 1, tmp_path / "head"))}
    llm = LLM(str(model), device="cpu", speculative_config=spec, cpu_arithmetic="fast" if fast else "exact")
    assert llm.engine.drafter is not None and isinstance(llm.engine.target, Dense)
    head, target = llm.engine.drafter.network, llm.engine.target
    assert isinstance(head, Eagle3Head) and isinstance(head.blocks, BlockLayers)
    blocks = head.blocks
    for run in (blocks.run_layers, target.run_layers):
        assert isinstance(run, FusedLayers) and isinstance(run.layers[0], FusedLayer)
    for mine, theirs in zip(matrices(blocks.layers[0]), matrices(target.layers[0]), strict=True):
        assert mine.tiles.dtype == theirs.tiles.dtype == codes and len(mine.digits) == len(theirs.digits)


def test_a_heads_layer_is_in_bytes_beside_a_model_in_floats(toy_model: Path, tmp_path: Path) -> None:
    target = load_target(toy_model, "float32", torch.device("cpu"), 64)
    assert lighter._form(target.layers) is None


def matrices(layer: Layer) -> list[Tiled]:
    linears = layer.attention.qkv, layer.attention.out, layer.mlp.gate_up, layer.mlp.down  # type: ignore[union-attr]
    found = [linear.weight for linear in linears if isinstance(linear, PackedLinear)]
    assert len(found) == len(linears)
    return [weight for weight in found if isinstance(weight, Tiled)]
