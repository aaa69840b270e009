"""DFlash: a few layers that fill a block of masked positions at once, over the target's streams as their context.

The context never runs through the layers: each of them projects the combined streams to keys and values, which go to
its cache where the target's own rows lie. Only the block has queries: the newest known token and the masks after it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from augury.kernels.rows import Rows
from augury.kernels.top import widened
from augury.model.errors import ModelError
from augury.model.heads.block import layer_shapes, make_rotary, read_layer
from augury.model.heads.dflash_config import DFLASH, BlockVisibility, DFlashConfig, read_dflash_config
from augury.model.heads.dflash_conv import GroupedConv, around
from augury.model.heads.dummy import HEAD_NORMS, DummyWeights
from augury.model.heads.files import Weights, read_tensors, unpickled
from augury.model.heads.lighter import lighter, lighter_layer
from augury.model.layers import AnyLinear, Layer, Linear
from augury.model.rope import context_length, head_dim
from augury.model.target import KVCache, Target
from augury.model.weight_files import MASK_FILE

UNITS = 64  # unit vectors projected at a time
NEEDLESS = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # used in training only, or implied by d2t


@dataclass(slots=True)
class DFlashWeights:
    """The weights outside the layers."""

    fc: AnyLinear
    hidden_norm: Tensor
    final_norm: Tensor
    embedding: Tensor | None  # None: the target's
    head: AnyLinear | None  # None: the target's
    targets: Tensor | None  # int64 [Vd]: the target's id of each token of the head's vocabulary
    mask: Tensor  # [H]: the embedding of a masked position


@dataclass(slots=True)
class BlockLayer:
    """A layer, and the part of its fused projection that the context goes through."""

    layer: Layer
    context: AnyLinear  # the part of qkv that makes keys and values
    sight: BlockVisibility
    sinks: Tensor | None
    attention_conv: GroupedConv | None = None  # DFlash2's
    mlp_conv: GroupedConv | None = None


class DFlash:
    """The drafter's network and its cache."""

    def __init__(self, target: Target, config: DFlashConfig, parts: DFlashWeights, layers: list[BlockLayer]) -> None:
        self.target, self.config, self.parts, self.layers = target, config, parts, layers
        self.features = config.features
        self.anchored = config.anchored
        self.mask_token = config.mask_token
        self.max_position = context_length(config.layer)
        self.layer_shapes = layer_shapes(config.layer, len(layers))
        self.cache_dtype = target.cache_dtype
        self.cache = KVCache()
        self._ops = layers[0].layer.attention.ops
        self._eps: float = config.layer.rms_norm_eps

    @torch.no_grad()
    def read(self, streams: Tensor, rows: Rows) -> None:
        """Write keys and values of the context [R, features * H] to the cache where the rows say; it has no queries."""
        ops, view = self._ops, self._ops.view(rows)
        context = ops.rms_norm(self.parts.fc(streams), self.parts.hidden_norm, self._eps)
        for i, block in enumerate(self.layers):
            attention = block.layer.attention
            ops.rotate_and_store(
                block.context(context),
                view,
                attention.rotary,
                self.cache.keys[i],
                self.cache.values[i],
                None,
                attention.k_norm,
                self._eps,
            )

    def fill(self, rows: Rows, masked: Tensor) -> Tensor:
        """Logits [W, target vocabulary] of the wanted rows: each guesses the token at its own position."""
        return self.widened(self.scores(self.states(rows, masked)))

    @torch.no_grad()
    def states(self, rows: Rows, masked: Tensor) -> Tensor:
        """Normed hidden states [W, H] of the wanted rows.

        Rows are blocks, with all rows of the block as `ancestors`; layers that see less of a block mask the rest.
        """
        parts, ops, eps = self.parts, self._ops, self._eps
        views = {sight: ops.view(replace(rows, ancestors=seen(rows, sight))) for sight in self.config.sights}
        residual = torch.where(masked[:, None], parts.mask, self._embed(torch.where(masked, 0, rows.tokens)))
        if self.config.embedding_scale != 1.0:
            residual = residual * self.config.embedding_scale
        place = rows.positions - rows.base
        x = ops.rms_norm(residual, self.layers[0].layer.attention_norm, eps)
        norms = [*(block.layer.attention_norm for block in self.layers[1:]), parts.final_norm]
        for i, block in enumerate(self.layers):
            attend = partial(self._attend, i, block, views[block.sight])
            x = around(block.attention_conv, attend, x, place)
            x, residual = ops.add_rms_norm(x, residual, block.layer.mlp_norm, eps)
            x, residual = ops.add_rms_norm(around(block.mlp_conv, block.layer.mlp, x, place), residual, norms[i], eps)
        return x[rows.wanted]

    def _attend(self, i: int, block: BlockLayer, view: Any, x: Tensor) -> Tensor:
        attention, keys, values = block.layer.attention, self.cache.keys[i], self.cache.values[i]
        if block.sinks is None:
            return attention(x, view, keys, values)
        q = self._ops.rotate_and_store(
            attention.qkv(x), view, attention.rotary, keys, values, attention.q_norm, attention.k_norm, self._eps
        )
        out = self._ops.attend(q, keys, values, view, attention.scale, attention.window, sinks=block.sinks)
        return attention.out(out.flatten(1))

    def _embed(self, tokens: Tensor) -> Tensor:
        own = self.parts.embedding
        return self.target.embed(tokens) if own is None else F.embedding(tokens, own).to(self.cache_dtype)

    @torch.no_grad()
    def scores(self, hidden: Tensor) -> Tensor:
        """Logits [W, draft vocabulary] of hidden states."""
        head, cap = self.parts.head, self.config.softcap
        logits = (self.target.project(hidden) if head is None else head(hidden)).float()
        if self.config.logit_scale != 1.0:
            logits = logits * self.config.logit_scale
        if cap:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def widened(self, logits: Tensor) -> Tensor:
        """Scores in the target's vocabulary; tokens the drafter does not know get -inf."""
        return widened(logits, self.parts.targets, self.target.vocab_size)

    @classmethod
    def load(
        cls, directory: Path, target: Target, dtype: torch.dtype, max_model_len: int, dummy: bool = False
    ) -> DFlash:
        """Read z-lab's layout or the speculators one."""
        reader = DFlashReader(directory, target, dtype, dummy=dummy)
        return cls(target, reader.config, *reader.finish("DFlash drafter", max_model_len))


class DFlashReader:
    """A checkpoint being read: a related format takes its extra tensors from `weights` before `finish`."""

    def __init__(
        self, directory: Path, target: Target, dtype: torch.dtype, kind: str = DFLASH, dummy: bool = False
    ) -> None:
        self.config = read_dflash_config(directory, target.num_layers, kind)
        if self.config.vocab != target.vocab_size:
            raise ModelError(
                f"{directory} was trained on {self.config.vocab} tokens, the target has {target.vocab_size}: "
                "it belongs to another target."
            )
        if dummy:
            self.weights: Weights = DummyWeights(directory, dtype, target.device, HEAD_NORMS)
        else:
            self.weights = Weights(directory, read_tensors(directory), dtype, target.device)
        self.target = target

    def finish(self, what: str, max_model_len: int) -> tuple[DFlashWeights, list[BlockLayer]]:
        """Read everything DFlash has; raise if anything is missing or left over."""
        weights, config, target = self.weights, self.config, self.target
        parts = _read_parts(weights, config, target)
        rotary = make_rotary(config.layer, max_model_len, target.device)
        layers = [_read_block_layer(weights, config, i, rotary) for i in range(config.layer.num_hidden_layers)]
        weights.drop(*NEEDLESS)
        weights.finish(what)
        parts.mask = _read_mask(weights.directory, config, parts, target)
        return parts, layers


def seen(rows: Rows, sight: BlockVisibility) -> Tensor:
    """The bits of the block's rows that each row sees; what lies too far back is left to the attention's window."""
    own = (rows.positions - rows.base).clamp(min=0)
    ahead = 0 if sight.causal else max(0, sight.window - 1) if sight.window else 62
    # 2 << n sets the bits 0 .. n below it; at n = 62 it overflows to just that.
    return rows.ancestors & ((2 << (own + ahead).clamp(max=62)) - 1)


def _read_parts(weights: Weights, config: DFlashConfig, target: Target) -> DFlashWeights:
    size, vocab = config.layer.hidden_size, config.draft_vocab
    # A drafter of another width can share neither the target's embeddings nor its head: its file must have both.
    stranger = size != target.hidden_size
    embeds = stranger or "embed_tokens.weight" in weights
    targets = weights.targets(vocab, target.vocab_size)
    return DFlashWeights(
        fc=lighter(weights.linear("fc", size, len(config.features) * target.hidden_size, bias=False)),
        hidden_norm=weights.vector("hidden_norm.weight", size),
        final_norm=weights.vector("norm.weight", size),
        embedding=weights.matrix("embed_tokens.weight", target.vocab_size, size) if embeds else None,
        head=_read_head(weights, config, target, targets),
        targets=targets,
        mask=torch.empty(0),
    )


def _read_head(weights: Weights, config: DFlashConfig, target: Target, targets: Tensor | None) -> AnyLinear | None:
    """The output matrix: one of its own, or some lines of the target's; None for the target's head as it is."""
    size, stranger = config.layer.hidden_size, config.layer.hidden_size != target.hidden_size
    if config.borrows and targets is not None and not stranger:
        return lighter(Linear(weights.ops, lines_of_head(target, targets, weights.dtype)))
    if stranger or config.draft_vocab != target.vocab_size or "lm_head.weight" in weights:
        return lighter(weights.linear("lm_head", config.draft_vocab, size))
    return None


@torch.no_grad()
def lines_of_head(target: Target, words: Tensor, dtype: torch.dtype) -> Tensor:
    """The lines `words` of the target's output matrix, [W, H], whatever its form: what it makes of unit vectors."""
    units = torch.eye(target.hidden_size, dtype=target.cache_dtype, device=target.device)
    columns = [target.project(some)[:, words] for some in units.split(UNITS)]
    return torch.cat(columns).T.contiguous().to(dtype)


def _read_block_layer(weights: Weights, config: DFlashConfig, i: int, rotary: tuple[Tensor, Tensor]) -> BlockLayer:
    at, heads, kv = f"layers.{i}.self_attn", config.layer.num_attention_heads, config.layer.num_key_value_heads
    dim, sight = head_dim(config.layer), config.sights[i]
    for name in (f"{at}.q_norm.weight", f"{at}.k_norm.weight"):
        if name not in weights:
            weights.raw(name, dim)  # named as missing: every DFlash layer has both
    layer = read_layer(weights, f"layers.{i}", config.layer, rotary, norm="input_layernorm")
    attention = layer.attention
    attention.window = sight.window
    qkv = attention.qkv
    assert isinstance(qkv, Linear)
    for tensor in (qkv.weight, *([] if qkv.bias is None else [qkv.bias])):
        tensor[(heads + kv) * dim :] *= config.value_scale
        if config.interleaved:
            for head in tensor[: (heads + kv) * dim].split(dim):
                head.copy_(_halved(head, rotary))
    if config.interleaved and attention.q_norm is not None and attention.k_norm is not None:
        attention.q_norm, attention.k_norm = _halved(attention.q_norm, rotary), _halved(attention.k_norm, rotary)
    context = Linear(qkv.ops, qkv.weight[heads * dim :], None if qkv.bias is None else qkv.bias[heads * dim :])
    sinks = weights.vector(f"{at}.attention_sink_bias", heads) if config.sinks else None
    return BlockLayer(lighter_layer(layer), lighter(context), sight, sinks)


def _halved(head: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """A head whose rotary pairs are adjacent, reordered into halves: its products stay the same."""
    turned = 2 * rotary[0].shape[1]
    return torch.cat([head[0:turned:2], head[1:turned:2], head[turned:]])


def _read_mask(directory: Path, config: DFlashConfig, parts: DFlashWeights, target: Target) -> Tensor:
    """The embedding of a masked position: a file of its own, else an unused row of the embeddings."""
    size, token = config.layer.hidden_size, config.mask_token
    if (directory / MASK_FILE).is_file():
        return _mask_from_file(directory / MASK_FILE, size).to(target.device, target.cache_dtype)
    if token is None:
        raise ModelError(
            f"{directory} names no mask token; its config.json needs dflash_config.mask_token_id or mask_token_id."
        )
    if not 0 <= token < target.vocab_size:
        raise ModelError(
            f"{directory}: mask token {token} is not among the target's {target.vocab_size} embeddings, and there is "
            f"no {MASK_FILE}; fetch the whole checkpoint."
        )
    row = torch.tensor([token], device=target.device)
    own = parts.embedding
    mask = target.embed(row) if own is None else F.embedding(row, own)
    return mask[0].to(target.cache_dtype)


def _mask_from_file(path: Path, size: int) -> Tensor:
    """One vector, bare or in a small table with its token's id; nothing but tensors is ever unpickled."""
    loaded = unpickled(path)
    values = list(loaded.values()) if isinstance(loaded, dict) else [loaded]
    vectors = [v for v in values if isinstance(v, Tensor) and v.is_floating_point() and v.numel() == size]
    if len(vectors) != 1:
        raise ModelError(f"{path} must hold one vector of {size} numbers; fetch it again.")
    return vectors[0].reshape(size)
