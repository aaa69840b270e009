"""Medusa: heads on the target's last hidden state, head k guessing the token k + 2 positions later.

Published files name the same tensors in two ways, each with or without a prefix, some inside a whole model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from augury.methods.spec import whole
from augury.model.errors import ModelError
from augury.model.heads.dummy import DummyWeights, spread_tokens
from augury.model.heads.files import Weights, read_raw_config, read_tensors
from augury.model.heads.lighter import lighter
from augury.model.layers import AnyLinear, Linear
from augury.model.split import Split, split_lines
from augury.model.target import Target

BACKBONE = ("model.", "transformer.", "gpt_neox.", "base_model.")  # a whole model's own weights are never read here
HEAD = re.compile(r"^(?P<prefix>medusa_heads?\.)?(?P<native>blocks\.|lm_heads\.)?(?P<head>\d+)\.")
SHARED = ("lm_head.weight", "lm_heads.0.weight")  # names that a matrix shared by all heads may have

Projection = Callable[[Tensor], Tensor]


class MedusaHeads:
    """Residual blocks and an output matrix per head; the matrix may be one for all, and may know fewer tokens."""

    def __init__(self, blocks: list[list[AnyLinear]], matrices: list[Projection], tokens: Tensor | None) -> None:
        self.blocks = blocks
        self.matrices = matrices  # one per head, or one that all share
        self.tokens = tokens  # int64: the target's id of each token the matrices know; None: the same ids

    @torch.no_grad()
    def scores(self, hidden: Tensor, heads: int) -> list[Tensor]:
        """Logits float32 [G, tokens known] of the first `heads` heads from normed hidden states [G, H]."""
        states = []
        for layers in self.blocks[:heads]:
            x = hidden
            for layer in layers:
                x = x + F.silu(layer(x))
            states.append(x)
        if len(self.matrices) == 1 < heads:
            return list(self.matrices[0](torch.cat(states)).float().split(len(hidden)))
        return [matrix(x).float() for matrix, x in zip(self.matrices, states, strict=False)]

    def named(self, found: Tensor) -> Tensor:
        """The target's token ids for indices into the logits."""
        return found if self.tokens is None else self.tokens[found]

    @classmethod
    def load(cls, directory: Path, target: Target, dtype: torch.dtype, heads: int, dummy: bool = False) -> MedusaHeads:
        """Read the first `heads` heads, whichever way they are named."""
        raw = read_raw_config(directory)
        if dummy:
            return cls._make(directory, raw, target, dtype, heads)
        tensors = read_tensors(directory, lambda name: _is_wanted(name, heads))
        names = _find_names(directory, tensors, raw)
        _check_count(directory, tensors, heads)
        if names.prefix:  # other tensors belong to the rest of the model
            tensors = {name: t for name, t in tensors.items() if name.startswith(names.prefix)}
        known = _token_map(directory, tensors, names, raw, target)
        weights = Weights(directory, tensors, dtype, target.device)
        size, biased = target.hidden_size, _is_biased(tensors, raw)
        blocks = _blocks(weights, names, size, biased, heads, target.draft_split)
        matrices = _matrices(weights, tensors, names, raw, target, known, heads)
        weights.finish("set of Medusa heads")
        return cls(blocks, matrices, None if known is None else known.to(target.device))

    @classmethod
    def _make(cls, directory: Path, raw: dict[str, Any], target: Target, dtype: torch.dtype, heads: int) -> MedusaHeads:
        """Random heads by config.json alone."""
        names, size = TensorNames("", False, whole(raw.get("medusa_num_layers")) or 1), target.hidden_size
        few, weights = whole(raw.get("truncated_vocab_size")), DummyWeights(directory, dtype, target.device)
        known = spread_tokens(few, target.vocab_size, target.device) if few and few < target.vocab_size else None
        blocks = _blocks(weights, names, size, _is_biased({}, raw), heads, target.draft_split)
        return cls(blocks, _matrices(weights, {}, names, raw, target, known, heads), known)


class TensorNames(NamedTuple):
    """How a file names its tensors."""

    prefix: str
    native: bool  # vLLM's own way, rather than the original one
    layers: int

    def layer(self, head: int, i: int) -> str:
        """The name of a linear in a head's residual block."""
        return f"{self.prefix}blocks.{head}.layers.{i}" if self.native else f"{self.prefix}{head}.{i}.linear"

    def matrix(self, head: int) -> str:
        """The name of a head's output matrix."""
        return f"{self.prefix}lm_heads.{head}.weight" if self.native else f"{self.prefix}{head}.{self.layers}.weight"


def _blocks(
    weights: Weights, names: TensorNames, size: int, biased: bool, heads: int, split: Split | None
) -> list[list[AnyLinear]]:
    """The residual blocks of every head."""
    return [
        [
            lighter(split_lines(weights.linear(names.layer(head, i), size, size, biased), split))
            for i in range(names.layers)
        ]
        for head in range(heads)
    ]


def _is_wanted(name: str, heads: int) -> bool:
    match = HEAD.match(name)
    return not name.startswith(BACKBONE) and not (match and int(match["head"]) >= heads)


def _find_names(directory: Path, tensors: dict[str, Tensor], raw: dict[str, Any]) -> TensorNames:
    ways = {(m["prefix"] or "", bool(m["native"])) for m in map(HEAD.match, tensors) if m}
    if not ways:
        raise ModelError(
            f"{directory} holds no Medusa heads: no tensor is named like 0.0.linear.weight, "
            "medusa_head.0.0.linear.weight or blocks.0.layers.0.weight; name another directory."
        )
    if len(ways) > 1:
        raise ModelError(f"{directory} holds Medusa heads under several names ({_listed(ways)}); keep one set.")
    prefix, native = ways.pop()
    # A whole model's num_hidden_layers counts the layers of its backbone.
    return TensorNames(prefix, native, whole(raw.get("num_hidden_layers" if native else "medusa_num_layers")) or 1)


def _listed(ways: set[tuple[str, bool]]) -> str:
    return ", ".join(sorted(f"{prefix}{'blocks.0' if native else '0.0'}" for prefix, native in ways))


def _check_count(directory: Path, tensors: dict[str, Tensor], wanted: int) -> None:
    found = {int(m["head"]) for m in map(HEAD.match, tensors) if m}
    count = next(i for i in range(wanted + 1) if i not in found)
    if count < wanted:
        raise ModelError(
            f"{directory} has {count} Medusa heads, and this configuration drafts {wanted} tokens deep; set "
            f"num_speculative_tokens (or the depth of the tree) to {count} or less."
        )


def _is_biased(tensors: dict[str, Tensor], raw: dict[str, Any]) -> bool:
    """Whether the blocks have biases; the original releases have them without saying so."""
    return bool(raw.get("medusa_fc_bias")) or any(HEAD.match(n) and n.endswith(".bias") for n in tensors)


def _token_map(
    directory: Path, tensors: dict[str, Tensor], names: TensorNames, raw: dict[str, Any], target: Target
) -> Tensor | None:
    """The target's ids of the tokens that a head with a reduced vocabulary knows; None if it is not reduced."""
    given, stated = tensors.pop(f"{names.prefix}token_map", None), whole(raw.get("truncated_vocab_size"))
    if stated is not None and stated >= target.vocab_size:
        return None
    if given is None:
        if stated is None:
            return None
        raise ModelError(f"{directory} knows {stated} tokens of {target.vocab_size}, but its token_map is missing.")
    tokens = given.long().flatten()
    if len(tokens) != (stated or len(tokens)):
        raise ModelError(f"{directory}: token_map has {len(tokens)} entries, its config says {stated}.")
    if len(tokens) == 0 or tokens.min() < 0 or tokens.max() >= target.vocab_size:
        raise ModelError(f"{directory}: token_map names tokens outside the target's vocabulary of {target.vocab_size}.")
    return tokens


def _matrices(
    weights: Weights,
    tensors: dict[str, Tensor],
    names: TensorNames,
    raw: dict[str, Any],
    target: Target,
    known: Tensor | None,
    heads: int,
) -> list[Projection]:
    """The output matrices: one per head, one for all of them, or the target's own."""
    own = [names.matrix(head) for head in range(heads)]
    shared = bool(raw.get("original_lm_head")) or (str(raw.get("version")) == "2" and not set(own) & set(tensors))
    if not shared:
        return [
            lighter(split_lines(_matrix(weights, tensors, name, target, known), target.draft_split)) for name in own
        ]
    stored = [f"{names.prefix}{name}" for name in SHARED if f"{names.prefix}{name}" in tensors]
    if not stored:
        return [target.project if known is None else _some_of(target, known.to(target.device))]
    matrix = _matrix(weights, tensors, stored[0], target, known)
    weights.drop(*stored, *own)
    return [lighter(split_lines(matrix, target.draft_split))]


def _matrix(weights: Weights, tensors: dict[str, Tensor], name: str, target: Target, known: Tensor | None) -> Linear:
    rows, size = target.vocab_size if known is None else len(known), target.hidden_size
    if known is not None and name in tensors and len(tensors[name]) == target.vocab_size:
        picked = weights.raw(name, target.vocab_size, size)[known]  # stored whole, used in part
        return Linear(weights.ops, picked.to(weights.device, weights.dtype).contiguous())
    return Linear(weights.ops, weights.matrix(name, rows, size))


def _some_of(target: Target, known: Tensor) -> Projection:
    return lambda hidden: target.project(hidden)[:, known]
