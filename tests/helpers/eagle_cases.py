"""Heads of the EAGLE kinds for the toy: configurations, random ones, ones that know two texts by heart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from formulas_eagle import Eagle, Eagle3
from gate import Studied, export, overfit
from rows import Segment, make_rows
from torch import Tensor, nn
from transformers import LlamaConfig

from augury.model.target import NORMED, KVCache

DRAFT = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
EAGLE3 = {**DRAFT, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 200}


def config_of(raw: dict[str, Any]) -> Any:
    return LlamaConfig(**{k: v for k, v in raw.items() if k not in ("model_type", "architectures")})


def eagle3_module(layers: int = 1, **flags: Any) -> Eagle3:
    torch.manual_seed(5)
    module = Eagle3(config_of({**EAGLE3, "num_hidden_layers": layers}), 3, 200, 260, **flags)
    for name, tensor in module.named_parameters():
        nn.init.normal_(tensor, 1.0 if "norm" in name else 0.0, 0.1)
    return module


def eagle_module(layers: int = 1, bias: bool = False) -> Eagle:
    torch.manual_seed(6)
    module = Eagle(config_of({**DRAFT, "num_hidden_layers": layers}), bias)
    for name, tensor in module.named_parameters():
        nn.init.normal_(tensor, 1.0 if "norm" in name else 0.0, 0.1)
    return module


def write_eagle3(directory: Path, module: Eagle3, **config: Any) -> Path:
    """The original layout."""
    return export(module, {**EAGLE3, **config}, directory)


def pairs(length: int) -> Any:
    """Rows of a whole text of pairs: row r holds token r, position r - 1, and row 0 stays empty."""
    tables = torch.arange(1, 20)[None]
    rows = make_rows([Segment(0, 1, [0] * length)], tables, 4)
    rows.positions = rows.positions - 1
    rows.first = 1
    return rows


def run_whole(head: Any, tokens: list[int], streams: Tensor, wanted: list[int] | None = None) -> tuple[Tensor, Tensor]:
    """The head over a text at once: pairs (token r, streams of token r - 1); outputs of all rows, or those wanted."""
    head.cache = KVCache.allocate(head.layer_shapes, 80, torch.float32, torch.device("cpu"))
    rows = pairs(len(tokens) - 1)
    rows.tokens = torch.tensor(tokens[1:])
    if wanted is not None:
        rows.wanted = torch.tensor(wanted, dtype=torch.int64)
    return head.forward(rows, head.combine(streams[:-1].contiguous()), 0)


TEXT = [64, 65, 66, 64, 65, 3, 9, 200, 150, 7, 8, 64]


def train_eagle(directory: Path, studied: Studied) -> Path:
    """Pairs of the studied texts; the head must say what the target says next, from its own states too."""
    module = eagle_module()
    data = [(studied.embed(text[1:]), studied.streams(text, (NORMED,)), torch.tensor(text)) for text in studied.texts]

    def loss() -> Tensor:
        total = torch.zeros(())
        for embedded, streams, text in data:
            out = module(embedded, streams[:-1])
            total = total + F.cross_entropy(studied.head(out[:-1]), text[2:]) + F.smooth_l1_loss(out, streams[1:])
            # Once more on what it said itself, a place later: the state it will be handed when it drafts on.
            again = module(embedded[1:], out[:-1])
            total = total + F.cross_entropy(studied.head(again[:-1]), text[3:])
        return total / len(data)

    overfit(module, loss, 130)
    return export(module, DRAFT, directory)


def train_eagle3(directory: Path, studied: Studied) -> Path:
    module = eagle3_module()
    said = sorted({token for text in studied.texts for token in text})  # a head guesses only what it has a word for
    known = torch.tensor(sorted([*said, *[t for t in range(260) if t not in said][: 200 - len(said)]]))
    module.d2t = known - torch.arange(200)
    place = torch.full((260,), -100).index_put((known,), torch.arange(200))
    data = [(studied.embed(text[1:]), studied.streams(text, (0, 1, 2)), torch.tensor(text)) for text in studied.texts]

    def loss() -> Tensor:
        total = torch.zeros(())
        for embedded, streams, text in data:
            hidden = module.combine(streams[:-1])
            for step in range(3):
                logits, hidden = module(
                    embedded[step:], hidden if step == 0 else hidden[:-1], positions=torch.arange(len(embedded) - step)
                )
                total = total + F.cross_entropy(logits[:-1], place[text[2 + step :]])
        return total / len(data)

    overfit(module, loss, 130)
    return write_eagle3(directory, module, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
