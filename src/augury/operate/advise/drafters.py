"""What each method drafts with: the shape of its model, if it has one, and how many passes a draft takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts
from augury.methods.registry import METHODS
from augury.operate.advise.shape import HEAD_BYTES, Shape, shape_of

PARALLEL = ("dflash", "dspark", "medusa", "mlp_speculator")  # the whole draft in one pass
TARGETS_WORDS = ("eagle", "mtp", "dflash", "dspark")  # read out through the target's own matrix
HEAD_VOCABULARY = 32000  # what published EAGLE-3 heads choose from
HEAD_WIDTH = 3.5  # MLP of a published head, in hidden sizes
BLOCK_LAYERS = 5  # of a published DFlash drafter


@dataclass(frozen=True, slots=True)
class Drafting:
    """How a method drafts."""

    method: str
    shape: Shape | None  # None: no weights, an index on the host or the device
    parallel: bool  # one pass for the whole draft; otherwise one a token
    assumed: str = ""  # what was taken for granted, for people

    @property
    def on_host(self) -> bool:
        """Whether vLLM has to wait for the host between steps."""
        return not METHODS[self.method].vllm_async

    def passes(self, tokens: int) -> int:
        """Runs of the drafter for a draft of so many tokens."""
        return min(tokens, 1) if self.parallel else tokens

    def memory_bytes(self, requests: int, context: float) -> float:
        """Its weights, and its cache for so many requests of this length."""
        if self.shape is None:
            return 0.0
        words = self.shape.vocab * self.shape.hidden * HEAD_BYTES if self.method in TARGETS_WORDS else 0.0
        return self.shape.stored_bytes - words + requests * self.shape.cache_bytes(context)


def drafting_for(method: str, target: Shape | None, drafter: ModelFacts | None = None) -> Drafting:
    """What drafts: the checkpoint given, or what is usually published for such a target."""
    parallel = method in PARALLEL
    if METHODS[method].weights == "none":
        return Drafting(method, None, True)
    if drafter is not None and method != "mtp":
        return Drafting(method, _given(method, drafter, target), parallel or _trained_parallel(drafter.raw))
    if target is None:
        return Drafting(method, None, parallel, "the drafter's size is not known, so its cost is not counted")
    usual = {"eagle": _eagle, "eagle3": _eagle3, "mtp": _mtp, "dflash": _block, "dspark": _block}.get(method)
    if usual is None:
        raise ConfigError(f"{method}: name its checkpoint with --drafter; there is no usual size of one.")
    shape = usual(target)
    own = Drafting(method, shape, parallel).memory_bytes(0, 0) / 1e9
    return Drafting(method, shape, parallel, f"a drafter of the usual size, {own:.2f} GB of weights")


def _given(method: str, facts: ModelFacts, target: Shape | None) -> Shape:
    """A drafter's shape from its own files; a head without a model's fields counts by the bytes of its weights."""
    try:
        shape = shape_of(facts)
    except ConfigError:
        found = sum(file.stat().st_size for file in _weights(facts.directory))
        if not found:
            raise
        return replace(_blank(facts.name, target), every_row=found // 2)
    if method not in (*TARGETS_WORDS, "eagle3"):
        return shape
    # A head takes the target's embedding, and chooses among its own words where it has fewer.
    shape = replace(shape, tied=True, vocab=min(facts.number("draft_vocab_size") or shape.vocab, shape.vocab))
    return _joined(shape) if method == "eagle3" else shape


def _weights(directory: Path | None) -> list[Path]:
    return [] if directory is None else [f for e in ("*.safetensors", "*.bin", "*.pt") for f in directory.glob(e)]


def _trained_parallel(raw: Mapping[str, object]) -> bool:
    return bool(raw.get("parallel_drafting") or raw.get("speculators_model_type") == "peagle")


def _blank(name: str, target: Shape | None) -> Shape:
    hidden = target.hidden if target else 1
    return Shape(name, 1, hidden, 0, 0, 0, 0, 0, True, 1, 0, 0, 0, 0, 2.0, False)


def _one_layer(target: Shape, name: str) -> Shape:
    """A layer of the target's attention with a dense MLP, in 16 bits."""
    values = (target.cache_values + target.window_values) // target.layers
    attention = target.hidden * (2 * target.hidden + values)  # queries and output, keys and values
    mlp = int(3 * HEAD_WIDTH * target.hidden * target.hidden)
    return replace(
        _blank(name, target), vocab=target.vocab, every_row=attention + mlp, cache_values=values,
        attention_width=target.attention_width, kv_heads=target.kv_heads,
    )  # fmt: skip


def _eagle(target: Shape) -> Shape:
    """A layer on token and hidden state; the target's own matrix gives the logits."""
    layer = _one_layer(target, "eagle")
    return replace(layer, every_row=layer.every_row + 2 * target.hidden * target.hidden)


def _eagle3(target: Shape) -> Shape:
    """A layer with a vocabulary of its own."""
    layer = _one_layer(target, "eagle3")
    return _joined(replace(layer, vocab=min(HEAD_VOCABULARY, target.vocab)))


def _joined(head: Shape) -> Shape:
    """With what no config.json states of EAGLE-3: twice the width read by queries, keys and values of the first layer,
    three streams joined before it."""
    values = (head.cache_values + head.window_values) // head.layers
    return replace(head, every_row=head.every_row + head.hidden * (3 * head.hidden + head.hidden + values))


def _mtp(target: Shape) -> Shape:
    """A layer of the target itself, experts and precision included; embedding and output matrix are the target's."""
    return replace(
        target, name="mtp", layers=1, every_row=target.every_row // target.layers + 2 * target.hidden * target.hidden,
        expert=target.expert // target.layers, cache_values=target.cache_values // target.layers,
        window_values=target.window_values // target.layers, tied=True,
    )  # fmt: skip


def _block(target: Shape) -> Shape:
    """A few layers that see the whole block at once; the target's own matrix gives the logits."""
    layer = _one_layer(target, "block")
    return replace(
        layer, layers=BLOCK_LAYERS, every_row=BLOCK_LAYERS * layer.every_row,
        cache_values=BLOCK_LAYERS * layer.cache_values,
    )  # fmt: skip
