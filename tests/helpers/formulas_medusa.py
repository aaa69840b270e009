"""Medusa heads straight from their formula, in plain torch; state dictionaries carry the published names."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """z + SiLU(W z + b)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, z: Tensor) -> Tensor:
        return z + F.silu(self.linear(z))


class Original(nn.ModuleList):
    """`{head}.{layer}.linear.*` and `{head}.{layers}.weight`, as the authors save them."""

    def __init__(self, heads: int, layers: int, size: int, vocabulary: int) -> None:
        super().__init__(
            nn.Sequential(*(Residual(size) for _ in range(layers)), nn.Linear(size, vocabulary, bias=False))
            for _ in range(heads)
        )

    def scores(self, hidden: Tensor) -> Tensor:
        """Logits [heads, T, V] of normed hidden states [T, H]."""
        return torch.stack([head(hidden) for head in self])


class Block(nn.Module):
    def __init__(self, layers: int, size: int, bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, size, bias=bias) for _ in range(layers))

    def forward(self, z: Tensor) -> Tensor:
        for layer in self.layers:
            z = z + F.silu(layer(z))
        return z


class Native(nn.Module):
    """`blocks.{head}.layers.{layer}.*` and `lm_heads.{head}.weight`, as vLLM names them."""

    def __init__(self, heads: int, layers: int, size: int, vocabulary: int, bias: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(layers, size, bias) for _ in range(heads))
        self.lm_heads = nn.ModuleList(nn.Linear(size, vocabulary, bias=False) for _ in range(heads))

    def scores(self, hidden: Tensor) -> Tensor:
        return torch.stack([head(block(hidden)) for block, head in zip(self.blocks, self.lm_heads, strict=True)])


def best_paths(laws: list[list[float]], top_k: int, nodes: int) -> list[tuple[tuple[int, ...], float]]:
    """Best-first search one node at a time over ranks: the likeliest paths and their log-probabilities.

    laws[d] are the log-probabilities at depth d, likeliest first.
    """
    found: list[tuple[tuple[int, ...], float]] = []
    open_paths = [((rank,), laws[0][rank]) for rank in range(top_k)]
    while open_paths and len(found) < nodes:
        best = max(open_paths, key=lambda entry: (entry[1], -len(entry[0]), [-r for r in entry[0]]))
        open_paths.remove(best)
        found.append(best)
        path, chance = best
        if len(path) < len(laws):
            open_paths += [((*path, rank), chance + laws[len(path)][rank]) for rank in range(top_k)]
    return found
