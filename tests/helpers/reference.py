"""Speculative decoding as the paper tells it, in plain torch: the oracle for the engine.

No cache, no batching, no slots: each step runs the whole sequence through the model, once for every node of the draft.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from augury.verify.noise import TARGET, gumbel

Model = Callable[[list[int]], Tensor]  # tokens -> logits of the next token, [V]
Propose = Callable[[list[int]], tuple[list[int], list[int]]]  # tokens -> draft tokens and parents (-1: the last token)


def draw(logits: Tensor, position: int, temperature: float, seed: int) -> int:
    """The target's own token at a position: a function of its logits and the request's noise, of nothing else."""
    if temperature == 0:
        return int(logits.argmax())
    noise = gumbel(torch.tensor([seed]), torch.tensor([position]), TARGET, len(logits))[0]
    return int((logits / temperature + noise).argmax())


def decode(
    model: Model, prompt: list[int], count: int, temperature: float = 0.0, seed: int = 0, propose: Propose | None = None
) -> tuple[list[int], int]:
    """Generate `count` tokens; returns them and the number of passes. Drafts change only the latter."""
    tokens, passes = list(prompt), 0
    while len(tokens) < len(prompt) + count:
        draft, parents = propose(tokens) if propose else ([], [])
        passes += 1
        node, path = -1, list(tokens)
        while True:
            drawn = draw(model(path), len(path), temperature, seed)
            path.append(drawn)
            children = [i for i, parent in enumerate(parents) if parent == node and draft[i] == drawn]
            if not children:
                break
            node = children[0]
        tokens = path
    return tokens[len(prompt) : len(prompt) + count], passes
