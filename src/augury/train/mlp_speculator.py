"""A gate head for `mlp_speculator`: IBM's layout with one set of weights for all guesses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from augury.train.export import halved, write_checkpoint
from augury.train.fit import fit
from augury.train.pairs import shake
from augury.train.places import Places
from augury.train.recipe import Recipe
from augury.train.study import Study
from augury.train.words import fading

WIDTH = 256  # of its own states, where the target's are wider


class Speculator(nn.Module):
    """Project, add the token, norm, GELU. The layout has no reduced vocabulary, so all other tokens share one row."""

    names: ClassVar[dict[str, str]] = {
        "emb.weight": "emb.0.weight",
        "head.weight": "head.0.weight",
        "first.weight": "proj.0.weight",
        "later.weight": "proj.1.weight",
        "scale": "ln.0.weight",
        "shift": "ln.0.bias",
    }  # as the layout has them

    def __init__(self, size: int, inner: int, rows: int, depth: int) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(rows, inner), nn.Linear(inner, rows, bias=False)
        self.first, self.later = nn.Linear(size, inner, bias=False), nn.Linear(inner, inner, bias=False)
        self.scale, self.shift = nn.Parameter(torch.ones(inner)), nn.Parameter(torch.zeros(inner))
        state = 0.5 ** (0.5 / depth)
        self.token_weight = math.sqrt((1 - state**2) * inner / 2) / state

    def scores(self, hidden: Tensor, tokens: Tensor) -> list[Tensor]:
        """Logits [R, rows] of each guess; tokens [R, depth] are those that guesses read, the newest known one first."""
        x, found = self.begin(hidden), []
        for i in range(tokens.shape[1]):
            x = self.step(i, x, tokens[:, i])
            found.append(self.head(x))
        return found

    def begin(self, hidden: Tensor) -> Tensor:
        """The state before any guess."""
        return F.rms_norm(hidden, hidden.shape[-1:], eps=1e-6) / math.sqrt(2)

    def step(self, i: int, x: Tensor, tokens: Tensor) -> Tensor:
        """The state of guess i, which its output matrix reads; tokens are rows of the embedding."""
        x = (self.later if i else self.first)(x) + self.token_weight * self.emb(tokens)
        return F.gelu(F.rms_norm(x, x.shape[-1:], self.scale, 1e-6) + self.shift)

    def published(self, embedded: Tensor, guessed: Tensor) -> dict[str, Tensor]:
        """The tensors under the names of the layout, each once, with these rows of its two tables."""
        tables = {"emb.weight": self.emb.weight[embedded], "head.weight": self.head.weight[guessed]}
        return {self.names[name]: tensor for name, tensor in (self.state_dict() | tables).items()}


def train_mlp_speculator(study: Study, directory: Path, recipe: Recipe) -> float:
    """Train it with the text itself as input (teacher forcing); returns the last loss."""
    size, vocabulary, words = study.config.hidden_size, study.config.vocab_size, study.words
    rows, inner = rows_of(words, vocabulary), min(WIDTH, size)
    module = Speculator(size, inner, len(words) + 1, recipe.depth)
    shake(module)
    places = Places.of(study.lessons, recipe.depth)
    fed = rows[torch.cat([places.newest[:, None], places.ahead[:, :-1].clamp(min=0)], dim=1)]
    labels = torch.where(places.ahead >= 0, rows[places.ahead.clamp(min=0)], -100)

    def loss() -> Tensor:
        return fading([F.cross_entropy(x, labels[:, i]) for i, x in enumerate(module.scores(places.hidden, fed))])

    last = fit(module, loss, recipe.steps, recipe.rate, recipe.tick)
    write_checkpoint(directory, halved(module.published(rows, rows)), mlp_config(study.config, inner, recipe.depth))
    return last


def rows_of(words: Tensor, vocabulary: int) -> Tensor:
    """The row of every token among sorted words, int64 [vocabulary]; tokens that are not among them share the last."""
    return torch.full((vocabulary,), len(words)).index_put((words,), torch.arange(len(words)))


def mlp_config(target: Any, inner: int, depth: int) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "model_type": "mlp_speculator",
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "emb_dim": target.hidden_size,
        "inner_dim": inner,
        "n_predict": depth,
        "vocab_size": target.vocab_size,
        "tie_weights": True,
        "scale_input": True,
        "top_k_tokens_per_head": [1] * depth,
        "n_candidates": 1,
    }
