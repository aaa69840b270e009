"""Matrices of heads in bytes: how far they are from what they stand for, and that only large ones change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from random_drafters import drafter

from augury import LLM, SamplingParams
from augury.kernels import choose
from augury.kernels.unpack import BLOCK
from augury.model.heads import lighter
from augury.model.heads.eagle3 import Eagle3Head
from augury.model.layers import Linear, PackedLinear


def random(lines: int, width: int) -> torch.Tensor:
    spread = torch.randn(lines, width // BLOCK, 1, generator=torch.Generator().manual_seed(2)).exp()
    return (torch.randn(lines, width // BLOCK, BLOCK, generator=torch.Generator().manual_seed(1)) * spread).flatten(1)


def test_a_weight_is_off_by_half_a_step_at_most() -> None:
    weight = random(40, 96)
    weight[3, 32:64] = 0
    back = lighter.in_bytes(weight).unpacked()
    steps = weight.view(40, 3, BLOCK).abs().amax(-1, keepdim=True) / 127
    assert bool(((back - weight).view(40, 3, BLOCK).abs() <= steps * 0.5001).all())
    assert bool((back[3, 32:64] == 0).all())


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
