"""MTP: the multi-token-prediction layers that a target was trained with and carries in its own files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from augury.kernels.rows import Rows
from augury.methods.mtp import trained_depth
from augury.model.checkpoint import nested_config, read_config
from augury.model.errors import ModelError
from augury.model.heads.block import BlockHead, BlockLayers, Stack, make_rotary, read_layer
from augury.model.heads.dummy import HEAD_NORMS, DummyWeights
from augury.model.heads.files import Weights, read_names, read_raw_config, read_tensors
from augury.model.heads.lighter import lighter
from augury.model.layers import AnyLinear
from augury.model.mixers import HYBRIDS
from augury.model.split import split_lines
from augury.model.target import NORMED, KVCache, Target

logger = logging.getLogger("augury")


class MTPLayout(NamedTuple):
    """How a family names the parts of its layers, and what it does with them."""

    name: str
    prefix: Callable[[Any, int], str]  # of layer i, from the target's configuration
    token_norm: str
    hidden_norm: str
    join: str
    block: str  # where decoder layer i lies, below the prefix: "{}" is i
    norm: str
    hidden_first: bool = False
    centred: bool = False  # norm weights are stored around zero
    blanks_start: bool = False  # the embedding at position 0 is zero


# Under "mtp." all layers share the norms and the joining matrix; elsewhere each layer has its own.
MIMO = ("token_layernorm", "hidden_layernorm", "input_proj", "", "final_layernorm")  # MiMo's names
QWEN3_NEXT = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "layers.{}.", "norm")
DEEPSEEK = ("enorm", "hnorm", "eh_proj", "", "shared_head.norm")
LAYOUTS = (
    MTPLayout("DeepSeek", lambda c, i: f"model.layers.{c.num_hidden_layers + i}.", *DEEPSEEK, blanks_start=True),
    MTPLayout("Qwen3-Next", lambda c, i: "mtp.", *QWEN3_NEXT, centred=True),
    MTPLayout("EXAONE", lambda c, i: "mtp.", *QWEN3_NEXT),
    MTPLayout("MiMo", lambda c, i: f"model.mtp_layers.{i}.", *MIMO, hidden_first=True),
    # The matrices of "mtp.", which read the embedding first, by MiMo's names.
    MTPLayout("speculators", lambda c, i: f"mtp_layers.{i}.", *MIMO),
)


class MtpLayer(NamedTuple):
    """One layer with the norms and the joining matrix around it."""

    token_norm: Tensor
    hidden_norm: Tensor
    final_norm: Tensor
    join: AnyLinear
    blocks: Stack


class MtpHead(BlockHead):
    """A RecurrentHead: norms, a projection of both inputs, one layer, a norm; embeddings and head are the target's.

    With several layers, guess i comes from layer i, modulo their number where more guesses are asked for. Each guess
    then has a cache of its own, since it pairs tokens with other states than the guess before it.
    """

    features: tuple[int, ...] = (NORMED,)

    def __init__(self, target: Target, layout: MTPLayout, layers: list[MtpLayer], guesses: int = 1) -> None:
        for layer in layers[1:]:
            layer.blocks.settle(target)
        super().__init__(target, layers[0].blocks)
        self.layout, self.layers = layout, layers
        self.guesses = guesses if len(layers) > 1 else 1  # how many of them have a cache of their own
        self.layer_shapes = [layers[i % len(layers)].blocks.shapes[0] for i in range(self.guesses)]
        self._cache = KVCache()
        self._parts: list[KVCache] = []

    @property
    def cache(self) -> KVCache:
        """Keys and values of every guess."""
        return self._cache

    @cache.setter
    def cache(self, cache: KVCache) -> None:
        self._cache = cache
        self._parts = [KVCache([k], [v]) for k, v in zip(cache.keys, cache.values, strict=True)]

    @torch.no_grad()
    def forward(self, rows: Rows, hidden: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """See RecurrentHead.forward; the normed state goes to the target's head and on to the next guess."""
        layer, residual = self._joined(rows, hidden, step)
        final = layer.blocks.run_wanted(rows, None, residual, layer.final_norm)[0]
        return self.target.project(final), final

    @torch.no_grad()
    def states(self, rows: Rows, hidden: Tensor, step: int) -> Tensor:
        """The normed states of all rows [R, H] after the layer that makes guess `step`."""
        layer, residual = self._joined(rows, hidden, step)
        return layer.blocks.run(rows, None, residual, layer.final_norm)[0]

    def _joined(self, rows: Rows, hidden: Tensor, step: int) -> tuple[MtpLayer, Tensor]:
        """The layer that makes guess `step`, with its cache, and what it reads."""
        layer, ops, eps = self.layers[step % len(self.layers)], self.blocks.ops, self.blocks.eps
        embedded = self.target.embed(rows.tokens)
        if self.layout.blanks_start:
            embedded = torch.where((rows.positions == 0)[:, None], 0.0, embedded)
        token = ops.rms_norm(embedded, layer.token_norm, eps)
        state = ops.rms_norm(hidden, layer.hidden_norm, eps)
        joined = [state, token] if self.layout.hidden_first else [token, state]
        layer.blocks.cache = self._parts[step % self.guesses]
        return layer, layer.join(torch.cat(joined, dim=1))

    @classmethod
    def load(
        cls,
        directory: Path,
        target: Target,
        dtype: torch.dtype,
        max_model_len: int,
        dummy: bool = False,
        guesses: int = 1,
    ) -> MtpHead:
        """Read the layers that make `guesses` guesses from the target's own tensors."""
        config = _layer_config(directory)
        layout = LAYOUTS[-1] if dummy else find_layout(directory, config)
        count = _how_many(directory, layout, config, dummy)
        make = partial(_read_layer, directory, layout, config, dtype, target, max_model_len, dummy)
        return cls(target, layout, [make(i) for i in range(min(count, guesses))], guesses)


def _layer_config(directory: Path) -> Any:
    """The configuration of the layers: the target's own, or the one that the speculators format nests."""
    inner = read_raw_config(directory).get("transformer_layer_config")
    return read_config(directory) if inner is None else nested_config(directory, inner)


def _how_many(directory: Path, layout: MTPLayout, config: Any, dummy: bool) -> int:
    """How many layers there are: as many as config.json says, or where it does not say, as the files hold."""
    stated = trained_depth(read_raw_config(directory))
    if dummy:
        return stated or 1
    names, held = read_names(directory), 0
    while any(name.startswith(_place(layout, config, held)) for name in names):
        held += 1
    if held < stated:
        raise ModelError(f"{directory}: config.json says {stated} MTP layers, the files hold {held}; fetch them again.")
    if 0 < stated < held:
        logger.warning("%s holds %d MTP layers; %d run, as its config.json says.", directory, held, stated)
    return stated or held


def _place(layout: MTPLayout, config: Any, i: int) -> str:
    """The prefix of the names of layer i's own tensors."""
    return layout.prefix(config, i) + layout.block.format(i)


def _read_layer(
    directory: Path,
    layout: MTPLayout,
    config: Any,
    dtype: torch.dtype,
    target: Target,
    max_model_len: int,
    dummy: bool,
    i: int,
) -> MtpLayer:
    weights = _dummy(directory, config, dtype, target) if dummy else _read(directory, layout, config, i, dtype, target)
    size, shift = config.hidden_size, 1.0 if layout.centred else 0.0
    names = (layout.token_norm, layout.hidden_norm, layout.norm)
    token, state, final = (weights.vector(f"{name}.weight", size, shift) for name in names)
    join = lighter(split_lines(weights.linear(layout.join, size, 2 * size), target.draft_split))
    weights.drop("embed_tokens.weight", "shared_head.head.weight")
    weights.move_into("_", () if layout.block else (*names, layout.join))
    block = layout.block.format(i).rstrip(".") or "_"
    # Hybrid families gate their attention; that, latent attention and experts run in transformers' own code.
    foreign = type(config).model_type in HYBRIDS
    if foreign or any(".kv_a_proj" in name or ".experts." in name for name in weights.left):
        # Imported here: transformers' models take seconds to import, and most MTP layers run in our own code.
        from augury.model.heads.foreign_block import ForeignBlocks

        taken = weights.take_all(f"{block}.")
        blocks: Stack = ForeignBlocks.load(config, taken, dtype, target.device, max_model_len)
    else:
        rotary = make_rotary(config, max_model_len, target.device)
        layer = read_layer(weights, block, config, rotary, norm="input_layernorm", shift=shift)
        blocks = BlockLayers(weights, config, [layer])
    if not dummy:
        weights.finish("target with an MTP layer")
    return MtpLayer(token, state, final, join, blocks)


def _read(directory: Path, layout: MTPLayout, config: Any, i: int, dtype: torch.dtype, target: Target) -> Weights:
    """The tensors of layer i, and those that it shares with others."""
    prefix, others = layout.prefix(config, i), layout.prefix(config, i) + layout.block.partition("{}")[0]
    own = _place(layout, config, i)

    def wanted(name: str) -> bool:
        another = bool(layout.block) and name.startswith(others) and not name.startswith(own)
        return name.startswith(prefix) and not another

    tensors = {name.removeprefix(prefix): tensor for name, tensor in read_tensors(directory, wanted).items()}
    return Weights(directory, tensors, dtype, target.device)


def _dummy(directory: Path, config: Any, dtype: torch.dtype, target: Target) -> Weights:
    """Random weights of a dense layer; the layouts differ in names alone."""
    if any(getattr(config, name, None) for name in ("kv_lora_rank", "n_routed_experts", "num_experts")):
        raise ModelError(f"{directory}: load_format='dummy' makes MTP layers without experts or latent attention only.")
    return DummyWeights(directory, dtype, target.device, HEAD_NORMS if config.model_type.startswith("qwen3") else ())


def find_layout(directory: Path, config: Any) -> MTPLayout:
    """The layout whose joining matrix is in the files; quantised copies often leave these layers out."""
    names = read_names(directory)
    for layout in LAYOUTS:
        if layout.centred and "qwen" not in str(config.model_type):
            continue
        if f"{layout.prefix(config, 0)}{layout.join}.weight" in names:
            # The speculators format has the norms of the target's own family, and hybrid Qwens store theirs around 0.
            centred = layout.centred or (layout.name == "speculators" and config.model_type in HYBRIDS)
            return layout._replace(centred=centred)
    raise ModelError(
        f"{directory} does not contain MTP weights (quantised copies often drop them); use the original checkpoint, or "
        "another method."
    )
