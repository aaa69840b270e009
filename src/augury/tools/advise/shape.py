"""Sizes a cost model needs, from config.json alone: weights read per pass, arithmetic per row, cache per token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from augury.config.errors import ConfigError, shown
from augury.config.facts import ModelFacts

LARGEST = 1 << 24  # no field of a config.json that is read here is larger
EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
EXPERTS_USED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "experts_per_token")
EXPERT_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size")
HEAD_BYTES = 2.0  # embeddings and the output matrix stay in 16 bits in nearly every quantised checkpoint


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes, in numbers of weights unless they say bytes."""

    name: str
    layers: int
    hidden: int
    vocab: int
    every_row: int  # weights of all layers that every row runs through: attention, dense MLPs, shared experts
    experts: int  # routed experts of a layer; 0: none
    experts_used: int  # of them, by one row
    expert: int  # weights of one expert, summed over the layers that have experts
    tied: bool  # the embedding is also the output matrix
    kv_heads: int
    attention_width: int  # query heads times their size: arithmetic per cached token
    cache_values: int  # cached values per token in full-attention layers, all layers together
    window_values: int  # the same in layers with a sliding window
    window: int
    weight_bytes: float  # bytes per weight of a layer
    fp8: bool  # the matrices multiply in fp8

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.every_row + self.experts * self.expert + self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def active(self) -> int:
        """Weights that one row is multiplied by."""
        return self.every_row + self.experts_used * self.expert + self.vocab * self.hidden

    @property
    def stored_bytes(self) -> float:
        """Memory for all weights."""
        layers = self.every_row + self.experts * self.expert
        return layers * self.weight_bytes + self.vocab * self.hidden * HEAD_BYTES * (1 if self.tied else 2)

    def read_bytes(self, rows: float) -> float:
        """Bytes of weights read in a forward pass of so many rows.

        Rows choose experts independently, so more rows touch more of them: verifying a draft costs a mixture of experts
        more than a dense model.
        """
        touched = self.experts * (1 - (1 - self.experts_used / self.experts) ** rows) if self.experts else 0.0
        layers = self.every_row + touched * self.expert
        return layers * self.weight_bytes + self.vocab * self.hidden * HEAD_BYTES

    def cache_bytes(self, context: float, value_bytes: float = 2.0) -> float:
        """KV cache of one request with a context of so many tokens."""
        return (self.cache_values * context + self.window_values * min(context, self.window)) * value_bytes


def shape_of(facts: ModelFacts) -> ModelShape:
    """The shape that a config.json describes; ConfigError names what is missing in it."""
    read = _Fields(facts)
    hidden, layers, heads = read.need("hidden_size", "n_embd"), read.need("num_hidden_layers", "n_layer"), 0
    heads = read.need("num_attention_heads", "n_head")
    kv_heads = read.maybe("num_key_value_heads") or heads
    head = read.maybe("head_dim") or max(1, hidden // heads)
    latent = read.maybe("kv_lora_rank")
    attention, values, width = (
        _latent_attention(read, hidden, heads, latent) if latent else _attention(hidden, heads, kv_heads, head)
    )
    dense = 3 * hidden * (read.maybe("intermediate_size", "n_inner", "ffn_hidden_size") or 4 * hidden)
    experts, used, expert, expert_layers, shared = _experts(read, hidden, layers)
    full, windowed, window = _reach(read, layers)
    weight_bytes, fp8 = precision(facts.raw)
    tied = read.place("tie_word_embeddings")
    return ModelShape(
        facts.name,
        layers,
        hidden,
        read.need("vocab_size"),
        every_row=layers * attention + (layers - expert_layers) * dense + expert_layers * shared,
        experts=experts,
        experts_used=used,
        expert=expert * expert_layers,
        tied=tied if isinstance(tied, bool) else False,
        kv_heads=1 if latent else kv_heads,
        attention_width=width,
        cache_values=full * values,
        window_values=windowed * values,
        window=window,
        weight_bytes=weight_bytes,
        fp8=fp8,
    )


class _Fields:
    """Whole numbers of a config.json, by any of their names."""

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts

    def place(self, name: str) -> Any:
        """A field of the language model's section, or else of the top level."""
        return self.facts.text.get(name, self.facts.raw.get(name))

    def maybe(self, *names: str) -> int | None:
        """A size, or None if it is missing; ConfigError names one that is wrong."""
        for name in names:
            value = self.place(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= LARGEST:
                raise ConfigError(f"{self.facts.name}: {name} is {shown(value)}; a whole number above 0 is needed.")
            return value
        return None

    def need(self, *names: str) -> int:
        """A size that must be there."""
        found = self.maybe(*names)
        if found is None:
            raise ConfigError(f"{self.facts.name}: {names[0]} is missing; a language model's config.json is needed.")
        return found

    def count(self, *names: str) -> int:
        """A number that may be 0 or left out."""
        name = next((name for name in names if self.place(name) is not None), None)
        value = 0 if name is None else self.place(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
            raise ConfigError(f"{self.facts.name}: {name} is {shown(value)}; a whole number is needed.")
        return value


def _attention(hidden: int, heads: int, kv_heads: int, head: int) -> tuple[int, int, int]:
    """Weights and cached values of a layer, and its width, with grouped-query attention."""
    return hidden * head * (2 * heads + 2 * kv_heads), 2 * kv_heads * head, heads * head


def _latent_attention(read: _Fields, hidden: int, heads: int, latent: int) -> tuple[int, int, int]:
    """The same with keys and values kept as one latent vector (MLA)."""
    rope, nope = read.need("qk_rope_head_dim"), read.need("qk_nope_head_dim")
    value, low = read.need("v_head_dim"), read.maybe("q_lora_rank")
    query = hidden * low + low * heads * (nope + rope) if low else hidden * heads * (nope + rope)
    keys = hidden * (latent + rope) + latent * heads * (nope + value)
    return query + keys + heads * value * hidden, latent + rope, heads * (latent + rope)


def _experts(read: _Fields, hidden: int, layers: int) -> tuple[int, int, int, int, int]:
    """Routed experts, how many a row uses, weights of one, layers that have them, weights of the shared ones."""
    experts = read.count(*EXPERTS)
    if experts < 2:
        return 0, 0, 0, 0, 0
    used = min(read.need(*EXPERTS_USED), experts)
    size = read.maybe(*EXPERT_WIDTH) or read.need("intermediate_size")
    dense_first, every = read.count("first_k_dense_replace"), max(1, read.count("decoder_sparse_step"))
    with_experts = max(0, layers - min(dense_first, layers)) // every
    shared = read.count("n_shared_experts") * size + read.count("shared_expert_intermediate_size")
    return experts, used, 3 * hidden * size, with_experts, 3 * hidden * shared


def _reach(read: _Fields, layers: int) -> tuple[int, int, int]:
    """Numbers of full-attention and sliding-window layers, and the window; other layers keep no growing cache."""
    kinds = read.place("layer_types")
    window = read.maybe("sliding_window") if read.place("use_sliding_window") is not False else None
    if isinstance(kinds, list) and len(kinds) == layers:
        full = sum("full" in str(kind) for kind in kinds)
        sliding = sum("sliding" in str(kind) for kind in kinds) if window else 0
        return full, sliding, window or 0
    every = read.count("full_attention_interval")
    if every > 1:
        return layers // every, 0, 0
    return (0, layers, window) if window else (layers, 0, 0)


def precision(raw: Mapping[str, Any]) -> tuple[float, bool]:
    """Bytes per weight of a layer, scales included, and whether the matrices multiply in fp8."""
    given = raw.get("quantization_config")
    if not isinstance(given, Mapping):
        return 2.0, False
    method, algorithm = str(given.get("quant_method", "")).lower(), str(given.get("quant_algo", "")).lower()
    if "fp4" in method or "fp4" in algorithm:
        return 0.53, False
    bits = given.get("bits", given.get("w_bit", _group_bits(given)))
    if method == "bitsandbytes":
        bits = 4 if given.get("load_in_4bit") else 8
    if method in ("fp8", "fbgemm_fp8") or algorithm == "fp8":
        return 1.0, True
    if not isinstance(bits, int) or isinstance(bits, bool) or bits not in (2, 3, 4, 5, 6, 8):
        return 2.0, False
    return bits / 8 * (1.06 if bits < 8 else 1.0), bits == 8 and _floating(given)


def _groups(given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = given.get("config_groups")
    found = [g.get("weights") for g in groups.values() if isinstance(g, Mapping)] if isinstance(groups, Mapping) else []
    return [weights for weights in found if isinstance(weights, Mapping)]


def _group_bits(given: Mapping[str, Any]) -> Any:
    """Bits per weight as compressed-tensors writes it; None if missing."""
    return next((weights.get("num_bits") for weights in _groups(given)), None)


def _floating(given: Mapping[str, Any]) -> bool:
    return any(weights.get("type") == "float" for weights in _groups(given))
