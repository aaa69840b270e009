"""Drafting with another vocabulary: tokens that both models spell alike, and the mapping between their ids."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from augury.config.errors import ConfigError
from augury.model.tokenizer import Tokenizer

MARKERS = ("Ġ", "▁")  # how tokenizers write a space
FEW = 100
logger = logging.getLogger("augury")


class SharedVocabulary:
    """The intersection of two vocabularies (token-level intersection: greedy drafts only)."""

    def __init__(self, target: Path, drafter: Path, sizes: tuple[int, int], device: torch.device) -> None:
        """Read both tokenizers; `sizes` are the target's and the drafter's number of logits."""
        ours, theirs = Tokenizer(target).inner, Tokenizer(drafter).inner
        mine, other = spelled(ours), spelled(theirs)
        both = [text for text in other if text in mine and mine[text] < sizes[0] and other[text] < sizes[1]]
        if not both:
            raise ConfigError(
                "speculative_config.use_heterogeneous_vocab=True: the two models have no token in common."
            )
        if len(both) < FEW:
            logger.warning("the target and the drafter share only %d tokens; few drafts will be accepted.", len(both))
        self.shared = len(both)
        unknown = theirs.unk_token_id if theirs.unk_token_id is not None else theirs.eos_token_id
        if unknown is None:
            raise ConfigError(
                "speculative_config.use_heterogeneous_vocab=True: the drafter's tokenizer has neither an unknown nor "
                "an end token to stand for tokens it does not know."
            )
        to_drafter = torch.full((sizes[0],), int(unknown), dtype=torch.int64)
        self._from = torch.tensor([other[text] for text in both], device=device)
        self._to = torch.tensor([mine[text] for text in both], device=device)
        to_drafter[self._to.cpu()] = self._from.cpu()
        self._to_drafter, self._size = to_drafter.to(device), sizes[0]

    def read(self, tokens: Tensor) -> Tensor:
        """The drafter's ids for the target's tokens."""
        return self._to_drafter[tokens]

    def write(self, logits: Tensor) -> Tensor:
        """The drafter's logits over the target's tokens; -inf for those that it does not have."""
        wide = logits.new_full((len(logits), self._size), float("-inf"))
        wide[:, self._to] = logits[:, self._from]
        return wide


def spelled(tokenizer: Any) -> dict[str, int]:
    """Token ids by their text, with one way to write a space; of two with the same text the lower id counts."""
    table: dict[str, int] = {}
    marks = space_markers(tokenizer)
    for text, number in sorted(tokenizer.get_vocab().items(), key=lambda item: -item[1]):
        for mark in marks:
            text = text.replace(mark, " ")
        table[text] = number
    return table


def space_markers(tokenizer: Any) -> tuple[str, ...]:
    """How this tokenizer writes a space: told from " a", both known ways if that says nothing."""
    tokens = tokenizer.tokenize(" a")
    found = tuple(mark for mark in MARKERS if tokens and tokens[0].startswith(mark))
    return found or MARKERS
