"""Models and drafters by name, each as a config.json: sizes without weights."""

from __future__ import annotations

from typing import Any, NamedTuple

from augury.config.errors import ConfigError
from augury.methods import registry
from augury.methods.registry import METHODS
from augury.methods.spec import MAX_NODES

Config = dict[str, Any]


def _decoder(layers: int, hidden: int, inner: int, heads: int, kv: int, dim: int, vocab: int, **more: Any) -> Config:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": dim,
        "vocab_size": vocab,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        **more,
    }


QWEN3: Config = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 40960,
}
SHAPES: dict[str, Config] = {
    "llama-8b": _decoder(32, 4096, 14336, 32, 8, 128, 128256),
    "llama-3b": _decoder(28, 3072, 8192, 24, 8, 128, 128256, tie_word_embeddings=True),
    "llama-1b": _decoder(16, 2048, 8192, 32, 8, 64, 128256, tie_word_embeddings=True),
    "qwen3-8b": _decoder(36, 4096, 12288, 32, 8, 128, 151936, **QWEN3),
    "qwen3-0.6b": _decoder(28, 1024, 3072, 16, 8, 128, 151936, tie_word_embeddings=True, **QWEN3),
    "smollm2-135m": _decoder(
        30, 576, 1536, 9, 3, 64, 49152, tie_word_embeddings=True, max_position_embeddings=8192, rope_theta=100000.0
    ),
    "toy": _decoder(6, 64, 128, 4, 2, 16, 320, max_position_embeddings=4096),
    "toy-draft": _decoder(2, 32, 64, 2, 1, 16, 320, max_position_embeddings=4096, tie_word_embeddings=True),
}
LOOK_UPS: dict[str, Config] = {
    name: {"method": name, **look_up.starts[0]} for name, look_up in registry.LOOK_UPS.items() if not look_up.twin_of
}
DEFAULTS = {"draft": (4, 3.5)}  # K and acceptance length; others: 3 and 3.0
NONE = "none"
# Keys that the bench itself sets, and names its rows by.
FIXED = {"method", "num_speculative_tokens", "rejection_sample_method", "synthetic_acceptance_length"}


class Drafter(NamedTuple):
    """A drafter as the bench runs it."""

    name: str  # as it was asked for
    tokens: int  # K
    length: float  # the acceptance length it is given
    keys: Config  # of speculative_config, except the model
    config: Config | None  # its own config.json, if it has one

    @property
    def speculates(self) -> bool:
        """Whether there is a drafter at all."""
        return self.name != NONE


def shape_of(name: str, option: str = "--shape ") -> Config:
    """A model's config.json; `option` is how a message names the place where it was asked for."""
    if name not in SHAPES:
        raise ConfigError(f"{option}{name}: no such shape; there are {', '.join(SHAPES)}.")
    return SHAPES[name]


def fits(name: str, shape: Config, length: int) -> None:
    """Refuse more text than a shape has positions for."""
    if length > (most := shape["max_position_embeddings"]):
        raise ConfigError(
            f"--prompt, --new: {length} tokens with the room that drafts need, and {name} has {most} positions; "
            "ask for fewer."
        )


def drafter_of(
    name: str, shape: Config, tokens: int | None, length: float | None, extra: Config | None = None
) -> Drafter:
    """A drafter for a target, by the name it has on the command line."""
    if name == NONE:
        return Drafter(NONE, 0, 1.0, {}, None)
    if fixed := FIXED & (extra or {}).keys():
        named = ", ".join(sorted(fixed))
        raise ConfigError(f"--spec: the bench sets {named} itself; use --drafter, --k, --length.")
    kind, _, inner = name.partition(":")
    usual = DEFAULTS.get(kind, (3, 3.0))
    tokens = tokens or usual[0]
    length = length or min(usual[1], tokens + 1.0)
    _check_counts(tokens, length)
    keys = {
        "num_speculative_tokens": tokens,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": length,
        **(extra or {}),
    }
    if name in LOOK_UPS:
        return Drafter(name, tokens, length, {**LOOK_UPS[name], **keys}, None)
    if kind == "draft":
        own = dict(shape_of(inner, "--drafter draft:"))
        _check_words(name, own["vocab_size"], shape["vocab_size"], extra or {})
        return Drafter(name, tokens, length, {"method": "draft_model", **keys}, own)
    return Drafter(name, tokens, length, {"method": name, **keys}, _head(name, shape, tokens))


def _check_counts(tokens: int, length: float) -> None:
    if tokens > MAX_NODES:
        raise ConfigError(f"--k {tokens}: at most {MAX_NODES} tokens are drafted at once.")
    if length > tokens + 1:
        raise ConfigError(
            f"--length {length:g}: {tokens} drafted tokens and the target's own make at most {tokens + 1}; "
            "lower it or raise --k."
        )


def _check_words(name: str, own: int, target: int, extra: Config) -> None:
    if own != target and not extra.get("use_heterogeneous_vocab"):
        fitting = [f"draft:{other}" for other, config in SHAPES.items() if config["vocab_size"] == target]
        raise ConfigError(
            f"--drafter {name}: its vocabulary has {own} tokens and the target's {target}; take {', '.join(fitting)}."
        )


def _head(name: str, shape: Config, tokens: int) -> Config:
    """The config.json of a head for a target; its layers have the target's size."""
    heads = {name: card.checkpoint for name, card in METHODS.items() if card.checkpoint}
    if name not in heads:
        known = ", ".join((NONE, *heads, *LOOK_UPS, "draft:SHAPE"))
        raise ConfigError(f"--drafter {name}: unknown; there are {known}.")
    return heads[name](shape, tokens)
