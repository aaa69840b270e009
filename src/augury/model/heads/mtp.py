"""MTP: the multi-token-prediction layer that a target was trained with and carries in its own files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from augury.model.checkpoint import read_config
from augury.model.errors import ModelError
from augury.model.heads.block import BlockHead, Blocks, Stack, make_rotary, read_layer
from augury.model.heads.dummy import HEAD_NORMS, DummyWeights
from augury.model.heads.files import Weights, read_names, read_tensors
from augury.model.heads.foreign_block import ForeignBlocks
from augury.model.layers import Linear
from augury.model.target import NORMED, Rows, Target

logger = logging.getLogger("augury")


class Layout(NamedTuple):
    """How a family names the parts of its layer, and what it does with them."""

    name: str
    prefix: Callable[[Any], str]  # of the first such layer, from the target's configuration
    token_norm: str
    hidden_norm: str
    join: str
    block: str  # where the decoder layer lies, below the prefix
    norm: str
    hidden_first: bool = False
    centred: bool = False  # norm weights are stored around zero
    blanks_start: bool = False  # the embedding at position 0 is zero


LAYOUTS = (
    Layout("DeepSeek", lambda c: f"model.layers.{c.num_hidden_layers}.", "enorm", "hnorm", "eh_proj", "",
           "shared_head.norm", blanks_start=True),
    Layout("Qwen3-Next", lambda c: "mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "layers.0.", "norm",
           centred=True),
    Layout("EXAONE", lambda c: "mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "layers.0.", "norm"),
    Layout("MiMo", lambda c: "model.mtp_layers.0.", "token_layernorm", "hidden_layernorm", "input_proj", "",
           "final_layernorm", hidden_first=True),
    Layout("speculators", lambda c: "mtp_layers.0.", "token_layernorm", "hidden_layernorm", "input_proj", "",
           "final_layernorm", hidden_first=True),
)  # fmt: skip


class MtpHead(BlockHead):
    """A RecurrentHead: norms, a projection of both inputs, one layer, a norm; embeddings and head are the target's."""

    features: tuple[int, ...] = (NORMED,)

    def __init__(
        self, target: Target, layout: Layout, norms: tuple[Tensor, Tensor, Tensor], join: Linear, blocks: Stack
    ) -> None:
        super().__init__(target, blocks)
        self.layout, self.join = layout, join
        self.token_norm, self.hidden_norm, self.final_norm = norms

    @torch.no_grad()
    def forward(self, rows: Rows, hidden: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """See RecurrentHead.forward; the normed state goes to the target's head and on to the next guess."""
        ops, eps = self.blocks.ops, self.blocks.eps
        embedded = self.target.embed(rows.tokens)
        if self.layout.blanks_start:
            embedded = torch.where((rows.positions == 0)[:, None], 0.0, embedded)
        token = ops.rms_norm(embedded, self.token_norm, eps)
        state = ops.rms_norm(hidden, self.hidden_norm, eps)
        joined = [state, token] if self.layout.hidden_first else [token, state]
        out = self.blocks.run(rows, None, self.join(torch.cat(joined, dim=1)))[rows.wanted]
        final = ops.rms_norm(out, self.final_norm, eps)
        return self.target.project(final), final

    @classmethod
    def load(
        cls, directory: Path, target: Target, dtype: torch.dtype, max_model_len: int, dummy: bool = False
    ) -> MtpHead:
        """Find the layer among the target's own tensors."""
        config = read_config(directory)
        layout = LAYOUTS[-1] if dummy else find_layout(directory, config)
        prefix = layout.prefix(config)
        weights = _dummy(directory, config, dtype, target) if dummy else _read(directory, prefix, dtype, target)
        size, shift = config.hidden_size, 1.0 if layout.centred else 0.0
        names = (layout.token_norm, layout.hidden_norm, layout.norm)
        token, state, final = (weights.vector(f"{name}.weight", size, shift) for name in names)
        join = weights.linear(layout.join, size, 2 * size)
        weights.drop("embed_tokens.weight", "shared_head.head.weight")
        weights.move_into("_", () if layout.block else (*names, layout.join))
        block = layout.block.rstrip(".") or "_"
        if any(".kv_a_proj" in name or ".experts." in name for name in weights.left):
            taken = weights.take_all(f"{block}.")
            blocks: Stack = ForeignBlocks.load(config, taken, dtype, target.device, max_model_len)
        else:
            rotary = make_rotary(config, max_model_len, target.device)
            layer = read_layer(weights, block, config, rotary, norm="input_layernorm", shift=shift)
            blocks = Blocks(weights, config, [layer])
        if not dummy:
            _say_what_is_left(weights, directory, prefix, config.num_hidden_layers)
        return cls(target, layout, (token, state, final), join, blocks)


def _read(directory: Path, prefix: str, dtype: torch.dtype, target: Target) -> Weights:
    own = read_tensors(directory, lambda name: name.startswith(prefix))
    tensors = {name.removeprefix(prefix): tensor for name, tensor in own.items()}
    return Weights(directory, tensors, dtype, target.device)


def _dummy(directory: Path, config: Any, dtype: torch.dtype, target: Target) -> Weights:
    """A dense layer; the layouts differ in names alone."""
    if any(getattr(config, name, None) for name in ("kv_lora_rank", "n_routed_experts", "num_experts")):
        raise ModelError(f"{directory}: load_format='dummy' makes MTP layers without experts or latent attention only.")
    return DummyWeights(directory, dtype, target.device, HEAD_NORMS if config.model_type.startswith("qwen3") else ())


def find_layout(directory: Path, config: Any) -> Layout:
    """The layout whose joining matrix is in the files; quantised copies often leave these layers out."""
    names = read_names(directory)
    for layout in LAYOUTS:
        if layout.centred and "qwen" not in str(config.model_type):
            continue
        if f"{layout.prefix(config)}{layout.join}.weight" in names:
            return layout
    raise ModelError(
        f"{directory} does not contain MTP weights (quantised copies often drop them); use the original checkpoint, or "
        "another method."
    )


def _say_what_is_left(weights: Weights, directory: Path, prefix: str, layers: int) -> None:
    """Say that further layers (deeper modules) are not run: the first is run again instead."""
    deeper = [name for name in weights.left if name.startswith(("layers.", "_.layers."))]
    weights.drop(*deeper)
    second = prefix.replace(".0.", ".1.") if ".0." in prefix else f"model.layers.{layers + 1}."
    if deeper or any(name.startswith(second) for name in read_names(directory)):
        logger.warning("%s has several MTP layers; the first is run repeatedly.", directory)
    weights.finish("target with an MTP layer")
