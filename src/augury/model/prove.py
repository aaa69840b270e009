"""Small tests that a model of transformers must pass before it runs here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from augury.kernels.rows import Rows
from augury.model.errors import ModelError
from augury.model.foreign import quietly
from augury.model.mixers import Mixer
from augury.model.state_pass import StatePass
from augury.model.states import States
from augury.model.target import KVCache, Target

PROBE = (7, 11, 13)
SLOTS = 2


def steps_error(target: Target) -> float:
    """How much the logits after three tokens differ when these come one by one, relative to the logits' spread."""
    size, device = len(PROBE), target.device
    target.cache = KVCache.allocate(target.layer_shapes, 3 * size, target.cache_dtype, device)
    if target.state_shapes:
        target.cache.states = States.allocate(target.state_shapes, SLOTS + 1, 1, 0, device)
    whole = target.forward(_rows(target, 0, 0, size)).logits
    steps = [target.forward(_rows(target, 1, i, i + 1)).logits for i in range(size)]
    target.cache = KVCache()
    return float((whole - steps[-1]).norm() / (whole - whole.mean()).norm().clamp(min=1e-6))


@torch.no_grad()
def check_mixer(module: Any, mixer: Mixer) -> None:
    """Refuse a recurrent layer whose output in transformers differs from ours."""
    weight = next(module.parameters())
    width = next(p.shape[1] for name, p in module.named_parameters() if name.startswith("in_proj"))
    rows = torch.randn(len(PROBE) + 3, width, generator=torch.Generator().manual_seed(0)).to(weight)
    states = States.allocate([mixer.shape], SLOTS, 1, 0, weight.device)
    index = torch.arange(len(rows), device=weight.device)
    ours = mixer(StatePass(states, _bare(index, index * 0, index + 1)), 0, rows)
    with quietly():  # it would warn that it runs its own reference code
        theirs = module(rows[None])
    theirs = theirs if isinstance(theirs, Tensor) else theirs[0]
    error = float((ours.float() - theirs[0].float()).norm() / theirs.float().norm().clamp(min=1e-6))
    if not error < (1e-3 if weight.dtype == torch.float32 else 0.1):
        raise ModelError(f"{type(module).__name__} of this transformers computes something else than expected")


def _rows(target: Target, slot: int, first: int, last: int) -> Rows:
    """The tokens PROBE[first:last] as rows of a slot."""
    index = torch.arange(first, last, device=target.device)
    rows = _bare(index, torch.zeros_like(index) + slot, index + 1)
    rows.tokens = torch.tensor(PROBE, device=target.device)[first:last] % target.vocab_size
    rows.write = index + (slot + 1) * len(PROBE)
    return rows


def _bare(index: Tensor, slots: Tensor, context: Tensor) -> Rows:
    zero, size = torch.zeros_like(index), len(PROBE)
    wanted = torch.tensor([len(index) - 1], device=index.device)
    tables = torch.tensor([[1], [2]], device=index.device)
    return Rows(zero, index, slots, context, zero, zero, zero, wanted, tables, size, size)
