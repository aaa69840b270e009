"""Prompt lookup from tensors: the proposals of `ngram` without leaving the device.

Every shape follows from (groups, width of the history) alone and nothing is read back, so a step that drafts with it
can be captured in a graph. It compares the ending with the whole history, which a GPU does faster than it could ask a
host. On a CPU that would be slow, and `ngram` drafts in its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import DrafterSetup
from augury.drafters.ngram import NgramDrafter
from augury.drafters.text import TextDrafter
from augury.kernels.faces import face
from augury.verify.tree import Draft, chain_parents


def continuation(text: Tensor, lengths: Tensor, min_n: int, max_n: int, latest: bool) -> Tensor:
    """Where the text after the longest match begins, or the length if nothing matches; int64 [G].

    Line g of `text` [G, W] counts up to lengths[g].
    """
    width = text.shape[1]
    ends = lengths[:, None] - 1
    places = torch.arange(width, device=text.device)
    same = (places < ends).expand_as(text)  # same[g, p]: the n-gram that ends at p equals the ending, n so far
    start = lengths
    for n in range(1, min(max_n, width) + 1):
        back = n - 1
        wanted = text.gather(1, (ends - back).clamp(min=0))
        shifted = text.roll(back, 1)  # what rolls round from the far end stands before `back` and is masked
        same = same & (shifted == wanted) & (places >= back) & (ends >= back)
        if n >= min_n:
            ranked = torch.where(same, places if latest else width - places, -1)
            score, place = ranked.max(1)
            start = torch.where(score >= 0, place + 1, start)
    return start


class NgramGpuDrafter(TextDrafter):
    """Finds repeated n-grams where the history lies; keeps nothing between steps."""

    name = "ngram_gpu"
    on_host = False

    def __new__(cls, config: SpeculativeConfig, setup: DrafterSetup) -> Any:
        """On a CPU an index finds the same drafts, without comparing the whole text."""
        return OnCpu(config, setup) if setup.target.device.type == "cpu" else super().__new__(cls)

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Take the lookup bounds, the match rule and the length of drafts from the configuration."""
        assert config.prompt_lookup_min and config.prompt_lookup_max  # `resolve` fills both in
        self.min_n, self.max_n = config.prompt_lookup_min, config.prompt_lookup_max
        self.latest = config.prompt_lookup_match == "latest"
        self.nodes = config.num_speculative_tokens
        self.max_model_len = setup.max_model_len

    def draft(self, slots: Tensor, lengths: Tensor, history: Tensor, budget: Tensor) -> Draft:
        """A chain for each slot, empty where nothing repeats."""
        start = self._continuation(slots, lengths, history)
        places = start[:, None] + torch.arange(self.nodes, device=start.device)
        tokens = history[slots[:, None], places.clamp(max=history.shape[1] - 1)]
        room = torch.minimum(budget, self.max_model_len - lengths).clamp(max=self.nodes)
        counts = torch.minimum(room, lengths - start).clamp(min=0)
        return Draft(tokens, chain_parents(len(slots), self.nodes, start.device), counts)

    def _continuation(self, slots: Tensor, lengths: Tensor, history: Tensor) -> Tensor:
        if face(history.device) == "triton":
            from augury.kernels import ngram_triton

            return ngram_triton.continuation(
                history, slots, lengths, self.min_n, self.max_n, self.latest, self.max_model_len
            )
        return continuation(history[slots], lengths, self.min_n, self.max_n, self.latest)


class OnCpu(NgramDrafter):
    """The same proposals where there is no GPU."""

    name = "ngram_gpu"
