"""How a drafter turns logits into a token: the likeliest, or a draw.

Under `coupled` a draw uses the target's own noise for that position, so that drafter and target agree as often as their
distributions allow; under the rejection rules it must not (the output would be biased), and the probabilities that it
was drawn from are handed on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.kernels import verify, verify_probs
from augury.kernels.top import argmax, widened
from augury.verify.noise import gumbel
from augury.verify.sampling import Draws, SlotSampling
from augury.verify.verdict import draft_purpose


class PickedTokens(NamedTuple):
    """One token per group, and the probabilities it was drawn from, if a rule needs them."""

    tokens: Tensor  # int64 [G]
    probs: Tensor | None = None  # float32 [G, V]


# logits [G, V], slots, positions of the tokens to draw, parameters, node number on the chain
Pick = Callable[[Tensor, Tensor, Tensor, SlotSampling, int], PickedTokens]


def make_pick(config: SpeculativeConfig, device: torch.device, vocab: int, targets: Tensor | None = None) -> Pick:
    """The way a configuration asks for; logits are over `vocab` tokens, or a drafter's own, whose ids are `targets`."""
    if not config.samples_drafts:
        return lambda logits, slots, positions, sampling, node: PickedTokens(argmax(logits, targets))
    draw = _coupled(device) if config.rule == "coupled" else _independent(device)

    def pick(logits: Tensor, slots: Tensor, positions: Tensor, sampling: SlotSampling, node: int) -> PickedTokens:
        return draw(widened(logits.float(), targets, vocab), slots, positions, sampling, node)

    return pick


def _lines(slots: Tensor, positions: Tensor) -> Draws:
    """Rows to draw from by temperature, top-k, top-p and min-p; penalties are left to the target."""
    none = torch.full_like(slots, -1)
    return Draws(slots, positions, none, none, slots[:, None], count=len(slots), plain=True)


def _coupled(device: torch.device) -> Pick:
    draw = verify.choose(device).draw

    def pick(logits: Tensor, slots: Tensor, positions: Tensor, sampling: SlotSampling, node: int) -> PickedTokens:
        return PickedTokens(draw(logits, _lines(slots, positions), sampling))

    return pick


def _independent(device: torch.device) -> Pick:
    probabilities = verify_probs.choose(device)

    def pick(logits: Tensor, slots: Tensor, positions: Tensor, sampling: SlotSampling, node: int) -> PickedTokens:
        probs = probabilities(logits, _lines(slots, positions), sampling)
        # A later step that drafts for this position again must not reuse this noise: `block` has looked at the draw.
        noise = gumbel(sampling.seed[slots], positions, draft_purpose(node, node + 1), probs.shape[1])
        return PickedTokens((probs.log() + noise).argmax(1), probs)

    return pick
