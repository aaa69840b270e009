"""What each method drafts with: the shape of its model, if it has one, and how many passes a draft takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts
from augury.methods.registry import METHODS
from augury.methods.spec import UsualHead
from augury.tools.advise.shape import HEAD_BYTES, ModelShape, shape_of

HEAD_WIDTH = 3.5  # MLP width of a published head, in hidden sizes


@dataclass(frozen=True, slots=True)
class DraftingCost:
    """What a method drafts with, for the cost model."""

    method: str
    shape: ModelShape | None  # None: no weights (an index on the host or the device), or their size is not known
    parallel: bool  # one pass for the whole draft; otherwise one per token
    assumed: str = ""  # what was assumed, as text for the user

    @property
    def on_host(self) -> bool:
        """Whether vLLM has to wait for the host between steps."""
        return not METHODS[self.method].vllm_async

    def passes(self, tokens: int) -> int:
        """Forward passes of the drafter for a draft of so many tokens."""
        return min(tokens, 1) if self.parallel else tokens

    def memory_bytes(self, requests: int, context: float) -> float:
        """The drafter's weights, and its KV cache for so many requests of `context` tokens each."""
        if self.shape is None:
            return 0.0
        usual = METHODS[self.method].usual
        reads_out_by_target = usual is not None and usual.vocabulary is None
        words = self.shape.vocab * self.shape.hidden * HEAD_BYTES if reads_out_by_target else 0.0
        return self.shape.stored_bytes - words + requests * self.shape.cache_bytes(context)


def drafting_for(method: str, target: ModelShape | None, drafter: ModelFacts | None = None) -> DraftingCost:
    """What the method drafts with: the given checkpoint, or a drafter of the size usual for such a target."""
    card = METHODS[method]
    parallel = card.one_pass
    if card.weights == "none":
        return DraftingCost(method, None, True)
    if drafter is not None and card.weights != "target":
        return DraftingCost(method, _given(method, drafter, target), parallel or _trained_parallel(drafter.raw))
    if target is None:
        return DraftingCost(method, None, parallel, "the drafter's size is not known, so its cost is not counted")
    if card.usual is None:
        raise ConfigError(f"{method}: name its checkpoint with --drafter; there is no usual size of one.")
    shape = _usual(method, card.usual, target)
    own = DraftingCost(method, shape, parallel).memory_bytes(0, 0) / 1e9
    return DraftingCost(method, shape, parallel, f"a drafter of the usual size, {own:.2f} GB of weights")


def _given(method: str, facts: ModelFacts, target: ModelShape | None) -> ModelShape:
    """A drafter's shape from its own files; a head whose config lacks a model's fields is sized by its weight files."""
    try:
        shape = shape_of(facts)
    except ConfigError:
        found = sum(file.stat().st_size for file in _weights(facts.directory))
        if not found:
            raise
        return replace(_blank(facts.name, target), every_row=found // 2)
    head = METHODS[method].usual
    if head is None:
        return shape
    # A head uses the target's embedding, and its own vocabulary if that is smaller.
    shape = replace(shape, tied=True, vocab=min(facts.number("draft_vocab_size") or shape.vocab, shape.vocab))
    return shape if head.stated else _joined(shape, head)


def _weights(directory: Path | None) -> list[Path]:
    return [] if directory is None else [f for e in ("*.safetensors", "*.bin", "*.pt") for f in directory.glob(e)]


def _trained_parallel(raw: Mapping[str, object]) -> bool:
    return bool(raw.get("parallel_drafting") or raw.get("speculators_model_type") == "peagle")


def _blank(name: str, target: ModelShape | None) -> ModelShape:
    hidden = target.hidden if target else 1
    return ModelShape(name, 1, hidden, 0, 0, 0, 0, 0, True, 1, 0, 0, 0, 0, 2.0, False)


def _one_layer(target: ModelShape, name: str) -> ModelShape:
    """A layer of the target's attention with a dense MLP, in 16 bits."""
    values = (target.cache_values + target.window_values) // target.layers
    attention = target.hidden * (2 * target.hidden + values)  # queries and output, keys and values
    mlp = int(3 * HEAD_WIDTH * target.hidden * target.hidden)
    heads: dict[str, Any] = {"attention_width": target.attention_width, "kv_heads": target.kv_heads}
    return replace(_blank(name, target), vocab=target.vocab, every_row=attention + mlp, cache_values=values, **heads)


def _usual(name: str, head: UsualHead, target: ModelShape) -> ModelShape:
    """The shape usually published for such a target; a shared output matrix counts too, since every pass reads it."""
    if head.of_target:  # experts and precision included
        parts = ("every_row", "expert", "cache_values", "window_values")
        share = {part: getattr(target, part) // target.layers for part in parts}
        return _joined(replace(target, name=name, layers=1, tied=True, **share), head)
    layer, words = _one_layer(target, name), min(head.vocabulary or target.vocab, target.vocab)
    sizes = {part: head.layers * getattr(layer, part) for part in ("every_row", "cache_values")}
    return _joined(replace(layer, layers=head.layers, vocab=words, **sizes), head)


def _joined(shape: ModelShape, head: UsualHead) -> ModelShape:
    """The shape with the weights that combine its inputs before the first layer."""
    values = (shape.cache_values + shape.window_values) // shape.layers
    return replace(shape, every_row=shape.every_row + head.joins(shape.hidden, values))
