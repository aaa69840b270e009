"""EAGLE: one decoder layer continues the target's last hidden state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from augury.kernels.rows import Rows
from augury.model.errors import ModelError
from augury.model.heads.block import BlockHead, BlockLayers, make_rotary, read_layer
from augury.model.heads.dummy import DummyWeights
from augury.model.heads.files import Weights, llama_config, read_raw_config, read_tensors
from augury.model.heads.lighter import lighter
from augury.model.layers import AnyLinear
from augury.model.split import split_lines
from augury.model.target import NORMED, Target


class EagleHead(BlockHead):
    """A RecurrentHead: fc of embedding and hidden state, layers of which the first has no norm, no final norm."""

    features: tuple[int, ...] = (NORMED,)

    def __init__(self, target: Target, fc: AnyLinear, blocks: BlockLayers, embedding: Tensor | None) -> None:
        super().__init__(target, blocks)
        self.fc, self.embedding = fc, embedding
        self._any_norm = torch.ones(target.hidden_size, dtype=target.cache_dtype, device=target.device)

    def forward(self, rows: Rows, hidden: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """See RecurrentHead.forward; the hidden states it returns are those that the target's head reads."""
        x = self.fc(torch.cat([embed(self.target, self.embedding, rows.tokens), hidden], dim=1))
        out = self.blocks.run_wanted(rows, x, x, self._any_norm)[1]
        return self.target.project(out), out

    @classmethod
    def load(
        cls, directory: Path, target: Target, dtype: torch.dtype, max_model_len: int, dummy: bool = False
    ) -> EagleHead:
        """Read the original layout (`fc`, `layers.N`), with or without embeddings and a bias."""
        raw = read_raw_config(directory)
        config = llama_config(raw)
        check_width(directory, config.hidden_size, target)
        if dummy:
            weights: Weights = DummyWeights(directory, dtype, target.device)
        else:
            tensors = {name.removeprefix("model."): t for name, t in read_tensors(directory).items()}
            weights = Weights(directory, tensors, dtype, target.device)
        rotary = make_rotary(config, max_model_len, target.device)
        size = config.hidden_size
        layers = [
            read_layer(weights, f"layers.{i}", config, rotary, norm="input_layernorm" if i else None)
            for i in range(config.num_hidden_layers)
        ]
        weights.drop("layers.0.input_layernorm.weight", "lm_head.weight")
        embedding = own_embedding(weights, config, target)
        fc = lighter(split_lines(weights.linear("fc", size, 2 * size), target.draft_split))
        weights.finish("EAGLE head")
        return cls(target, fc, BlockLayers(weights, config, layers), embedding)


def check_width(directory: Path, width: int, target: Target) -> None:
    """Refuse a head that was made for another target."""
    if width != target.hidden_size:
        raise ModelError(
            f"{directory} was made for hidden size {width}, the target has {target.hidden_size}; "
            "take the head that was trained for this target."
        )


def own_embedding(weights: Weights, config: Any, target: Target) -> Tensor | None:
    """The head's own embeddings, if it has any."""
    if "embed_tokens.weight" not in weights:
        return None
    return weights.matrix("embed_tokens.weight", target.vocab_size, config.hidden_size)


def embed(target: Target, embedding: Tensor | None, tokens: Tensor) -> Tensor:
    """Embeddings of tokens, the head's own or the target's."""
    if embedding is None:
        return target.embed(tokens)
    return torch.nn.functional.embedding(tokens, embedding).to(target.cache_dtype)
