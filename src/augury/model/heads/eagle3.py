"""EAGLE-3 and P-EAGLE: a layer over several of the target's streams, perhaps with a vocabulary of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from augury.kernels.rows import Rows
from augury.model.errors import ModelError
from augury.model.heads.block import BlockHead, BlockLayers, make_rotary, read_layer
from augury.model.heads.dummy import DummyWeights
from augury.model.heads.eagle import check_width, embed, own_embedding
from augury.model.heads.files import Weights, llama_config, read_raw_config, read_tensors, read_vocabulary
from augury.model.heads.lighter import lighter
from augury.model.layers import AnyLinear
from augury.model.split import split_lines
from augury.model.target import Target


@dataclass(slots=True)
class Flags:
    """What differs between releases."""

    norm_before_residual: bool  # the residual starts from the normed hidden state
    norm_output: bool  # the hidden state for the next guess is normed (EAGLE 3.1)


@dataclass(slots=True)
class Eagle3Weights:
    """The weights outside the layers."""

    fc: AnyLinear
    hidden_norm: Tensor
    token_norm: Tensor
    final_norm: Tensor
    head: AnyLinear | None  # None: the target's
    embedding: Tensor | None  # None: the target's
    targets: Tensor | None  # int64 [Vd]: the target's id of each token of the head's vocabulary
    input_norm: Tensor | None  # over all streams together (norm_before_fc)
    stream_norms: list[Tensor]  # or over each (fc_norm)
    mask_hidden: Tensor | None  # what stands for streams that are not known yet (P-EAGLE)


class Eagle3Head(BlockHead):
    """EAGLE-3's network, a RecurrentHead."""

    def __init__(
        self, target: Target, features: tuple[int, ...], parts: Eagle3Weights, blocks: BlockLayers, flags: Flags
    ) -> None:
        super().__init__(target, blocks, len(features))
        self.features, self.parts, self.flags = features, parts, flags
        self.targets = parts.targets
        self.mask_token: int | None = None

    def combine(self, streams: Tensor) -> Tensor:
        """fc over the streams, normed first where the release does so."""
        parts, ops, eps = self.parts, self.blocks.ops, self.blocks.eps
        if parts.input_norm is not None:
            streams = ops.rms_norm(streams, parts.input_norm, eps)
        elif parts.stream_norms:
            chunks = streams.chunk(len(parts.stream_norms), dim=1)
            normed = [ops.rms_norm(x.contiguous(), w, eps) for x, w in zip(chunks, parts.stream_norms, strict=True)]
            streams = torch.cat(normed, dim=1)
        return parts.fc(streams)

    def forward(self, rows: Rows, hidden: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """See RecurrentHead.forward."""
        parts, ops, eps = self.parts, self.blocks.ops, self.blocks.eps
        token = ops.rms_norm(embed(self.target, parts.embedding, rows.tokens), parts.token_norm, eps)
        normed = ops.rms_norm(hidden, parts.hidden_norm, eps)
        residual = normed if self.flags.norm_before_residual else hidden
        final, out = self.blocks.run_wanted(rows, torch.cat([token, normed], dim=1), residual, parts.final_norm)
        reads = parts.head is None or not final.shape[0]
        logits = self.target.project(final) if reads else parts.head(final)  # type: ignore[misc]
        return logits, final if self.flags.norm_output else out

    @classmethod
    def load(
        cls, directory: Path, target: Target, dtype: torch.dtype, max_model_len: int, dummy: bool = False
    ) -> Eagle3Head:
        """Read the original (`midlayer`), the ModelOpt (`layers.0`) and the speculators layout."""
        raw = read_raw_config(directory)
        config = llama_config(raw)
        check_width(directory, raw.get("target_hidden_size") or config.hidden_size, target)
        if dummy:
            weights: Weights = DummyWeights(directory, dtype, target.device, _optional(raw))
        else:
            weights = Weights(directory, _renamed(read_tensors(directory)), dtype, target.device)
        features = feature_layers(raw, target)
        parts = _read_parts(weights, raw, config, target, len(features))
        rotary = make_rotary(config, max_model_len, target.device)
        layers = [read_layer(weights, "layers.0", config, rotary, width=2 * config.hidden_size)]
        layers += [
            read_layer(weights, f"layers.{i}", config, rotary, norm="input_layernorm")
            for i in range(1, config.num_hidden_layers)
        ]
        weights.drop("t2d", "d2t")
        weights.finish("EAGLE-3 head")
        head = cls(target, features, parts, BlockLayers(weights, config, layers), _flags(raw))
        head.mask_token = mask_token(raw)
        if head.mask_token is not None and not 0 <= head.mask_token < target.vocab_size:
            raise ModelError(
                f"{directory}: mask token {head.mask_token} is not among the target's {target.vocab_size} tokens."
            )
        return head


def _renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    def plain(name: str) -> str:
        name = name.removeprefix("model.")
        return name.replace("midlayer.", "layers.0.") if name.startswith("midlayer.") else name

    return {plain(name): tensor for name, tensor in tensors.items()}


def _optional(raw: dict[str, Any]) -> tuple[str, ...]:
    """The tensors of only some releases that a dummy of this config.json has."""
    return ("mask_hidden",) * (mask_token(raw) is not None) + ("input_norm.weight",) * bool(raw.get("norm_before_fc"))


def _flags(raw: dict[str, Any]) -> Flags:
    # Official checkpoints leave the key out and mean false; so does the speculators class.
    return Flags(bool(raw.get("norm_before_residual", False)), bool(raw.get("norm_output", False)))


def feature_layers(raw: dict[str, Any], target: Target) -> tuple[int, ...]:
    """Which streams the head reads: ids count layers already run, as vLLM and speculators count."""
    inner = raw.get("eagle_config") if isinstance(raw.get("eagle_config"), dict) else {}
    if inner.get("use_aux_hidden_state") is False:  # type: ignore[union-attr]
        return (target.num_layers,)
    stated = raw.get("eagle_aux_hidden_state_layer_ids")
    if stated is None and inner and inner.get("eagle_aux_hidden_state_layer_ids") is not None:
        named = inner["eagle_aux_hidden_state_layer_ids"]  # there an id names the layer itself
        stated = [i + 1 if isinstance(i, int) else i for i in named] if isinstance(named, list) else named
    n = target.num_layers
    if stated is not None and (not isinstance(stated, list) or not stated):
        raise ModelError(f"the head's eagle_aux_hidden_state_layer_ids={stated!r} must be a list of layers.")
    ids = tuple(stated) if stated is not None else (2, n // 2, n - 3)
    if not all(isinstance(i, int) and 0 <= i <= n for i in ids):
        raise ModelError(f"the head reads layers {list(ids)}, the target has {n}; it was trained for another target.")
    return ids


def mask_token(raw: dict[str, Any]) -> int | None:
    """The token that stands for a position not drafted yet, by vLLM's order of names."""
    inner = raw.get("dflash_config") if isinstance(raw.get("dflash_config"), dict) else {}
    for place, name in (
        (inner, "mask_token_id"),
        (raw, "mask_token_id"),
        (raw, "dspark_noise_token_id"),
        (raw, "pard_token"),
        (raw, "ptd_token_id"),
    ):
        if isinstance(place, dict) and isinstance(place.get(name), int):
            return int(place[name])
    return None


def _read_parts(weights: Weights, raw: dict[str, Any], config: Any, target: Target, streams: int) -> Eagle3Weights:
    size, wide = config.hidden_size, streams * target.hidden_size
    vocab = read_vocabulary(raw, target.vocab_size)
    targets = weights.targets(vocab, target.vocab_size)
    own_head = "lm_head.weight" in weights or vocab != target.vocab_size
    norms = [f"fc_norm.{i}.weight" for i in range(streams)]
    return Eagle3Weights(
        fc=lighter(split_lines(weights.linear("fc", size, wide), target.draft_split)),
        hidden_norm=weights.vector("layers.0.hidden_norm.weight", size),
        token_norm=weights.vector("layers.0.input_layernorm.weight", size),
        final_norm=weights.vector("norm.weight", size),
        head=lighter(split_lines(weights.linear("lm_head", vocab, size), target.draft_split)) if own_head else None,
        embedding=own_embedding(weights, config, target),
        targets=targets,
        input_norm=weights.vector("input_norm.weight", wide) if "input_norm.weight" in weights else None,
        stream_norms=[weights.vector(n, target.hidden_size) for n in norms] if norms[0] in weights else [],
        mask_hidden=weights.raw("mask_hidden", 1, 1, wide).view(1, wide).to(target.device, target.cache_dtype)
        if "mask_hidden" in weights
        else None,
    )
