"""The target's draw where each rank has the logits of some tokens only: no rank sees them all.

A token is the argmax of its scaled logit plus its noise, and noise is a function of seed, position and token: each rank
finds the best of its own tokens, and the best of those is the draw, to the bit. Scaling takes the highest logit of all,
so a sampled line takes two reductions of one number each, a greedy one a single one. Filters and edits need the whole
line and are left to verify.draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from augury.kernels.faces import face
from augury.kernels.verify import NEVER, ordered
from augury.verify.noise import TARGET, gumbel
from augury.verify.sampling import Draws, SlotSampling

LOW_31 = 0x7FFFFFFF  # no token is above this

Contest = Callable[[Tensor, Tensor, Draws, SlotSampling, int], tuple[Tensor, Tensor]]


class Largest(Protocol):
    """The largest of all ranks' values, element by element."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the maxima; may write to x."""
        ...


def draw_share(logits: Tensor, draws: Draws, sampling: SlotSampling, first: int, largest: Largest) -> Tensor:
    """The target's token for every line, int64 [L], from this rank's logits [L, W] of tokens first .. first + W - 1."""
    top = torch.full((len(logits),), NEVER, device=logits.device)
    if not draws.greedy:
        if logits.shape[1]:
            top = ordered(logits.float()).amax(1)
        top = largest(top)
    keys = packed(*_contest(logits.device)(logits, top, draws, sampling, first))
    keys = largest(keys if keys.dim() == 1 else keys.amax(1))  # of a line's chunks, where it has several
    return torch.where(keys >> 32 > NOTHING, LOW_31 - (keys & LOW_31), 0)


def packed(scores: Tensor, tokens: Tensor) -> Tensor:
    """Scores and tokens as int64 in the order of the draw: the higher score, and of equal ones the lower token."""
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # the sum turns -0 into 0
    key = torch.where(bits < 0, bits ^ LOW_31, bits)
    return (key << 32) | (LOW_31 - tokens)


NOTHING = int(packed(torch.tensor([NEVER]), torch.tensor([0]))[0] >> 32)


def contest(logits: Tensor, top: Tensor, draws: Draws, sampling: SlotSampling, first: int) -> tuple[Tensor, Tensor]:
    """The best score of these tokens and its token, given `top`, the highest logit of all: float32 and int64 [L]."""
    if not logits.shape[1]:
        return torch.full_like(top, NEVER), torch.zeros_like(draws.slots)
    scores = ordered(logits.float())
    if not draws.greedy:
        temperature = sampling.temperature[draws.slots][:, None]
        z = (scores - torch.where(top > NEVER, top, 0.0)[:, None]) / torch.where(temperature > 0, temperature, 1.0)
        noise = gumbel(sampling.seed[draws.slots], draws.positions, TARGET, scores.shape[1], first)
        scores = torch.where(temperature > 0, z + noise, scores)
    best, place = scores.max(1)
    place = (scores == best[:, None]).to(torch.int8).argmax(1)  # max names any of equals
    return best, place + first


def _contest(device: torch.device) -> Contest:
    if face(device) == "numba":
        from augury.kernels import verify_numba_share

        return verify_numba_share.contest
    if face(device) == "triton":
        from augury.kernels import share_triton

        return share_triton.contest
    return contest
