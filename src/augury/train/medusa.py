"""Gate heads for `medusa`: each guesses one token further ahead, over a vocabulary of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from augury.train.export import write_checkpoint
from augury.train.fit import fit
from augury.train.places import Places
from augury.train.recipe import Recipe
from augury.train.study import Study
from augury.train.words import fading, word_loss


class Block(nn.Module):
    """Residual layers, one after another: z + SiLU(W z)."""

    def __init__(self, size: int, layers: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(layers))
        for matrix in self.layers.parameters():
            nn.init.zeros_(matrix)

    def forward(self, z: Tensor) -> Tensor:
        """Rows in, rows out."""
        for layer in self.layers:
            z = z + F.silu(layer(z))
        return z


class Medusa(nn.Module):
    """Blocks and output matrices by vLLM's names for them; one matrix may serve all heads."""

    def __init__(self, heads: int, beginning: Tensor, shared: bool = False, layers: int = 1) -> None:
        super().__init__()
        words, size = beginning.shape
        self.blocks = nn.ModuleList(Block(size, layers) for _ in range(heads))
        self.lm_heads = nn.ModuleList(nn.Linear(size, words, bias=False) for _ in range(1 if shared else heads))
        with torch.no_grad():
            for matrix in self.lm_heads.parameters():
                matrix.copy_(beginning)

    def states(self, hidden: Tensor) -> list[Tensor]:
        """The states that each head's output matrix reads."""
        return [block(hidden) for block in self.blocks]

    def scores(self, hidden: Tensor) -> list[Tensor]:
        """Logits [R, words] of every head."""
        return [matrix(x) for x, matrix in zip(self.states(hidden), self.lm_heads, strict=True)]


def train_medusa(study: Study, directory: Path, recipe: Recipe) -> float:
    """Train heads with a token_map; returns the last loss."""
    words = study.words
    module, places = Medusa(recipe.depth, study.head[words]), Places.of(study.lessons, recipe.depth)

    def loss() -> Tensor:
        scores = module.scores(places.hidden)
        return fading([word_loss(logits, words, places.ahead[:, i]) for i, logits in enumerate(scores)])

    last = fit(module, loss, recipe.steps, recipe.rate, recipe.tick)
    config = medusa_config(study.config, recipe.depth, len(words))
    write_checkpoint(directory, module.state_dict() | {"token_map": words}, config)
    return last


def medusa_config(target: Any, heads: int, words: int, layers: int = 1) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "num_heads": heads,
        "num_hidden_layers": layers,
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "truncated_vocab_size": words,
        "max_paths": 64,
    }
