"""DFlash2 straight from its formulas, in plain torch and plain Python: convolutions position by position, the selector
pair by pair, trees from lists. The state dictionary carries the published names, as in formulas_dflash.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from formulas_dflash import IDS, MASK, VOCAB, Attention, Blocks, DFlashFormula, Shape, published_config
from gate import Studied
from safetensors.torch import save_file
from torch import Tensor, nn

EDGE = 1e-3  # what an edge of a grown tree costs: drafters/grow.py


@dataclass(frozen=True)
class Extra:
    """Sizes beyond DFlash's."""

    taps: int = 2
    group: int = 16
    rank: int = 12
    top_k: int = 5
    scale: float = 1.0  # of embeddings

    def words(self) -> dict[str, int]:
        """By their published names."""
        names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        return dict(zip(names, (self.taps, self.group, self.rank, self.top_k), strict=True))


class Conv(nn.Module):
    """out[t] = sum over taps j <= t of (base[j] + correction[t, j]) * x[t - j], the correction one for a group."""

    def __init__(self, hidden: int, extra: Extra) -> None:
        super().__init__()
        self.extra, self.groups = extra, hidden // extra.group
        self.base_kernel = nn.Parameter(torch.zeros(2, extra.taps, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * extra.taps * self.groups, bias=False)

    def corrections(self, x: Tensor) -> Tensor:
        return self.kernel_projection(x).reshape(len(x), 2, self.extra.taps, self.groups)

    def forward(self, x: Tensor, side: int, corrections: Tensor, inside: list[int]) -> Tensor:
        """Rows [Q, H] whose places in their blocks are `inside`."""
        out = []
        for t, place in enumerate(inside):
            row = torch.zeros_like(x[t])
            for j in range(min(place + 1, self.extra.taps)):
                spread = corrections[t, side, j].repeat_interleave(self.extra.group)
                row = row + (self.base_kernel[side, j] + spread) * x[t - j]
            out.append(row)
        return torch.stack(out)


class Layer(nn.Module):
    def __init__(self, shape: Shape, extra: Extra, plain: nn.Module) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = plain.input_layernorm, plain.self_attn
        self.post_attention_layernorm, self.mlp = plain.post_attention_layernorm, plain.mlp
        self.attention_conv, self.mlp_conv = Conv(shape.hidden, extra), Conv(shape.hidden, extra)


class Selector(nn.Module):
    def __init__(self, hidden: int, extra: Extra) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.zeros(VOCAB, extra.rank))
        self.successor_codebook = nn.Parameter(torch.zeros(VOCAB, extra.rank))
        self.hidden_projection = nn.Linear(hidden, extra.rank, bias=False)

    def pair(self, hidden: Tensor, previous: int, token: int) -> float:
        """What a token gains from the one before it."""
        triple = self.predecessor_codebook[previous] * self.hidden_projection(hidden) * self.successor_codebook[token]
        return float(triple.sum())


class DFlash2Formula(DFlashFormula):
    """Hidden states of blocks, and the drafts that follow from them."""

    def __init__(self, shape: Shape, extra: Extra | None = None) -> None:
        super().__init__(shape)
        self.extra = extra or Extra()
        self.layers = nn.ModuleList(Layer(shape, self.extra, plain) for plain in self.layers)
        self.candidate_selector = Selector(shape.hidden, self.extra)

    def forward(self, streams: Tensor, embedded: Tensor, blocks: Blocks) -> Tensor:
        context, x = self.context(streams), embedded * self.extra.scale
        inside = (blocks.positions - blocks.anchor).tolist()
        for i, layer in enumerate(self.layers):
            seen = self.seen(len(context), blocks, self.shape.causal[i], self.shape.windows[i])
            read = layer.input_layernorm(x)
            corrections = layer.attention_conv.corrections(read)
            read = layer.attention_conv(read, 0, corrections, inside)
            attention: Attention = layer.self_attn
            attended = attention(read, context, blocks.positions, seen)
            x = x + layer.attention_conv(attended, 1, corrections, inside)
            read = layer.post_attention_layernorm(x)
            corrections = layer.mlp_conv.corrections(read)
            out = layer.mlp(layer.mlp_conv(read, 0, corrections, inside))
            x = x + layer.mlp_conv(out, 1, corrections, inside)
        return self.norm(x)

    def hidden(self, studied: Studied, text: list[int], depth: int) -> Tensor:
        """Of the masks behind a text whose last token is the newest, [depth, H]."""
        streams = studied.streams(text, (1, 2))[:-1]
        embedded = self.embedded(studied, torch.tensor([text[-1]] + [MASK] * depth))
        return self(streams, embedded, Blocks.at([len(text) - 1], depth + 1))[1:]

    def embedded(self, studied: Studied, tokens: Tensor) -> Tensor:
        return self.embed_tokens(tokens) if hasattr(self, "embed_tokens") else studied.embed(tokens)

    def scores(self, studied: Studied, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden) if hasattr(self, "lm_head") else studied.head(hidden)

    def children(self, studied: Studied, hidden: Tensor, previous: int) -> list[tuple[int, float]]:
        """The candidates at a position behind a token with their log-probabilities, likeliest first."""
        own = self.scores(studied, hidden)
        tokens = own.topk(self.extra.top_k).indices.tolist()
        tied = [float(own[token]) + self.candidate_selector.pair(hidden, previous, token) for token in tokens]
        chances = torch.tensor(tied).log_softmax(0).tolist()
        return sorted(zip(tokens, chances, strict=True), key=lambda pair: -pair[1])

    @torch.no_grad()
    def chain(self, studied: Studied, text: list[int], depth: int) -> list[int]:
        """The greedy walk."""
        tokens = [text[-1]]
        for row in self.hidden(studied, text, depth):
            tokens.append(self.children(studied, row, tokens[-1])[0][0])
        return tokens[1:]

    @torch.no_grad()
    def tree(
        self, studied: Studied, text: list[int], depth: int, top_k: int, most: int
    ) -> dict[tuple[int, ...], float]:
        """The `most` likeliest paths and their scores, when the best `top_k` nodes of a level have as many children."""
        level, found = {(): 0.0}, dict[tuple[int, ...], float]()
        for row in self.hidden(studied, text, depth):
            grown = {
                (*path, token): score + chance - EDGE
                for path, score in level.items()
                for token, chance in self.children(studied, row, path[-1] if path else text[-1])[:top_k]
            }
            found |= grown
            level = dict(sorted(grown.items(), key=lambda item: -item[1])[:top_k])
        return dict(sorted(found.items(), key=lambda item: -item[1])[:most])

    @torch.no_grad()
    def literal(self, studied: Studied, text: list[int], paths: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The tokens along each path of ranks."""
        hidden, found = self.hidden(studied, text, max(map(len, paths))), list[tuple[int, ...]]()
        for path in paths:
            tokens: list[int] = [text[-1]]
            for row, rank in zip(hidden, path, strict=False):
                tokens.append(self.children(studied, row, tokens[-1])[rank][0])
            found.append(tuple(tokens[1:]))
        return found


def published(shape: Shape, extra: Extra, **more: Any) -> dict[str, object]:
    """config.json in z-lab's layout."""
    inner = {**extra.words(), **more.pop("dflash_config", {})}
    if extra.scale != 1.0:
        inner["input_embedding_scale"] = extra.scale
    return published_config(shape, MASK, IDS, dflash_config=inner, architectures=["DFlash2DraftModel"], **more)


def speculators(directory: Path, formula: DFlash2Formula, **more: Any) -> Path:
    """The speculators layout: the layers nested, ids one higher, embeddings and a head of its own."""
    formula.embed_tokens = nn.Embedding(VOCAB, formula.shape.hidden)
    formula.lm_head = nn.Linear(formula.shape.hidden, VOCAB, bias=False)
    directory.mkdir(parents=True, exist_ok=True)
    save_file({**formula.state_dict(), "t2d": torch.ones(VOCAB, dtype=torch.bool)}, directory / "model.safetensors")
    layer = published_config(formula.shape, MASK, IDS)
    for name in ("dflash_config", "block_size", "auto_map", "architectures", "num_target_layers"):
        del layer[name]
    config = {
        "speculators_model_type": "dflash2",
        "architectures": ["DFlash2DraftModel"],
        "transformer_layer_config": layer | more.pop("layer", {}),
        "block_size": 8,
        "mask_token_id": MASK,
        "draft_vocab_size": VOCAB,
        "aux_hidden_state_layer_ids": [i + 1 for i in IDS],
        **formula.extra.words(),
        "speculators_config": {
            "algorithm": "dflash2",
            "verifier": {"name_or_path": "toy"},
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
        },
        **more,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def paths_of(tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    """The tokens from the root to each node."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found
