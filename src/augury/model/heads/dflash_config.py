"""The configuration of a DFlash checkpoint, in z-lab's or the speculators format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augury.methods.facts import architectures
from augury.model.configurations import auto_config
from augury.model.errors import ModelError, one_line
from augury.model.heads.files import read_raw_config
from augury.model.plausible import check_numbers

MASK_KEYS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")  # vLLM's order
DFLASH, DFLASH2, DSPARK = "DFlash", "DFlash2", "DSpark"  # what is read here, by the names in the files
# Advice for a related format that was read as another kind; those without any are not supported.
RELATIVES = {DFLASH2: "use method='dflash'", "LiLiCorr": "", "Domino": "", DSPARK: "use method='dspark'"}
BORROWED = "augury_head_of_target"  # a key of config.json
INNER, NESTED = "dflash_config", "transformer_layer_config"  # the parts of a config.json
SCALES = (
    "attention_value_scale",
    "output_multiplier",
    "logit_scale",
    "final_logit_softcapping",
    "input_embedding_scale",
    "rms_norm_eps",
    "rope_theta",
)
DEFAULT_THETA = 1e6  # where a config names none; transformers' own default is another


@dataclass(frozen=True, slots=True)
class BlockVisibility:
    """What a layer's block rows see apart from the context: the whole block or what precedes them, and how far back."""

    causal: bool
    window: int  # 0: no limit


@dataclass(frozen=True, slots=True)
class DFlashConfig:
    """A checkpoint's config.json, resolved."""

    layer: Any  # transformers' configuration of the draft layers
    features: tuple[int, ...]  # streams of the target, counted in layers already run
    mask_token: int | None
    sights: tuple[BlockVisibility, ...]  # one per layer
    sinks: bool
    value_scale: float
    logit_scale: float
    softcap: float  # 0: none
    embedding_scale: float
    interleaved: bool  # rotary pairs are neighbours, not halves
    draft_vocab: int
    borrows: bool  # its output matrix: the target's lines for its words (what `augury drafter trim` writes)
    anchored: bool  # the known token's own row guesses too (DSpark)
    raw: dict[str, Any]  # config.json itself, for what only a relative reads

    @property
    def vocab(self) -> int:
        """The vocabulary it was trained on."""
        return int(self.layer.vocab_size)


def read_dflash_config(directory: Path, target_layers: int, kind: str = DFLASH) -> DFlashConfig:
    """Read and check config.json; nothing that came with the checkpoint is run. `kind`: what it is read as."""
    raw = read_raw_config(directory)
    _refuse_senseless(directory / "config.json", raw)
    inner = inner_part(raw)
    _refuse_relatives(directory, raw, kind)
    _refuse_habits(directory, raw, inner, kind)
    words = dict(raw.get(NESTED) or raw)
    layer = _layer_config(directory, words)
    return DFlashConfig(
        layer=layer,
        features=_features(directory, raw, inner, layer.num_hidden_layers, target_layers),
        mask_token=_mask_token(raw, inner),
        sights=tuple(_sight(directory, raw, words, i, kind) for i in range(layer.num_hidden_layers)),
        sinks=bool(inner.get("attention_sink_bias", raw.get("add_swa_attention_sink_bias", False))),
        value_scale=float(inner.get("attention_value_scale") or 1.0),
        logit_scale=float(inner.get("output_multiplier") or raw.get("logit_scale") or 1.0),
        softcap=float(inner.get("final_logit_softcapping") or raw.get("final_logit_softcapping") or 0.0),
        embedding_scale=_embedding_scale(raw, inner),
        interleaved=not raw.get("is_neox_style", True),
        draft_vocab=int(raw.get("draft_vocab_size") or layer.vocab_size),
        borrows=raw.get(BORROWED) is True,
        anchored=kind == DSPARK and bool(raw.get("sample_from_anchor", "speculators_model_type" not in raw)),
        raw=raw,
    )


def inner_part(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of z-lab's format that describes drafting, as opposed to the layers; empty in other formats."""
    inner = raw.get(INNER)
    return inner if isinstance(inner, Mapping) else {}


def relative(raw: Mapping[str, Any], besides: str = "") -> str | None:
    """Which relative of DFlash a config.json names, other than `besides`; None if it names none."""
    named = [*architectures(raw), str(raw.get("speculators_model_type", ""))]
    return next((kind for kind in RELATIVES if kind != besides for n in named if kind.lower() in n.lower()), None)


def _refuse_senseless(file: Path, raw: Mapping[str, Any]) -> None:
    """Refuse values that no drafter has, each by its name."""
    for name in (INNER, NESTED):
        if not isinstance(raw.get(name) or {}, Mapping):
            raise ModelError(f"{file}: {name}={str(raw[name])[:40]!r} must be an object; fetch the file again.")
    parts = (raw, inner_part(raw), raw.get(NESTED) or {})
    check_numbers(file, *parts)
    for part in parts:
        for name, value in part.items():
            if name in SCALES and value is not None and not _is_number(value):
                raise ModelError(f"{file}: {name}={str(value)[:40]!r} must be a number.")
    words = raw.get("draft_vocab_size")
    if words is not None and (type(words) is not int or words < 1):
        raise ModelError(f"{file}: draft_vocab_size={str(words)[:40]!r} must be a whole number above 0.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _refuse_relatives(directory: Path, raw: Mapping[str, Any], kind: str) -> None:
    """Refuse checkpoints that would load partly and draft nonsense."""
    other = relative(raw, besides=kind)
    if other:
        raise ModelError(
            f"{directory} is a {other} drafter, {RELATIVES[other] or 'which is not supported; take a DFlash one'}."
        )


def _embedding_scale(raw: Mapping[str, Any], inner: Mapping[str, Any]) -> float:
    return float(inner.get("input_embedding_scale") or raw.get("input_embedding_scale") or 1.0)


def _refuse_habits(directory: Path, raw: Mapping[str, Any], inner: Mapping[str, Any], kind: str) -> None:
    """Refuse settings that this kind does not support."""
    if kind != DSPARK and (raw.get("sample_from_anchor") or inner.get("sample_from_anchor")):
        raise ModelError(f"{directory}: sample_from_anchor is not {kind}, whose known token predicts nothing.")
    if kind != DFLASH2 and _embedding_scale(raw, inner) != 1.0:
        raise ModelError(f"{directory}: input_embedding_scale is not supported; take a checkpoint without it.")
    if raw.get("quantization_config"):
        raise ModelError(f"{directory} holds quantised weights, which are not supported; take the unquantised ones.")


def _layer_config(directory: Path, words: dict[str, Any]) -> Any:
    kind = str(words.pop("model_type", "") or "qwen3")
    if not words.get("rope_theta") and not words.get("rope_parameters"):
        words["rope_theta"] = DEFAULT_THETA
    try:
        layer = auto_config().for_model(kind, **words)
        sizes = (layer.hidden_size, layer.num_attention_heads, layer.num_key_value_heads, layer.rms_norm_eps)
    except ImportError:
        raise
    except Exception as error:  # the library has dozens of ways to refuse a value
        raise ModelError(f"cannot read {directory / 'config.json'}: {one_line(error)}") from error
    if layer.num_hidden_layers < 1 or not all(sizes):
        raise ModelError(f"{directory / 'config.json'} describes no layers; the checkpoint is incomplete.")
    if getattr(layer, "hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"{directory}: hidden_act={layer.hidden_act!r} is not supported; DFlash layers use silu.")
    return layer


def _features(
    directory: Path, raw: Mapping[str, Any], inner: Mapping[str, Any], layers: int, target_layers: int
) -> tuple[int, ...]:
    """Which streams it reads. DFlash's own ids name the layer whose output is read, ours count the layers run."""
    eagle = raw.get("eagle_config") if isinstance(raw.get("eagle_config"), Mapping) else {}
    places = (
        (raw.get("eagle_aux_hidden_state_layer_ids"), 0),
        (raw.get("aux_hidden_state_layer_ids"), 0),
        (inner.get("target_layer_ids"), 1),
        (raw.get("dspark_target_layer_ids"), 1),
        (raw.get("target_layer_ids"), 1),
        (inner.get("layer_ids"), 0),
        ((eagle or {}).get("layer_ids"), 0),
        (default_layer_ids(layers, target_layers), 1),
    )
    ids, shift = next((ids, shift) for ids, shift in places if ids)
    if not isinstance(ids, list) or not all(isinstance(i, int) and 0 <= i + shift <= target_layers for i in ids):
        raise ModelError(
            f"{directory} reads layers {ids} of its target, which has {target_layers}: it belongs to another target."
        )
    return tuple(i + shift for i in ids)


def default_layer_ids(layers: int, target_layers: int) -> list[int]:
    """The target layers that z-lab's trainer takes for a drafter of so many layers: spread over all but the ends."""
    if layers == 1:
        return [target_layers // 2]
    return [round(1 + i * (target_layers - 4) / (layers - 1)) for i in range(layers)]


def _mask_token(raw: Mapping[str, Any], inner: Mapping[str, Any]) -> int | None:
    for place, name in [(inner, "mask_token_id"), *((raw, name) for name in MASK_KEYS)]:
        if isinstance(place.get(name), int):
            return int(place[name])
    return None


def _sight(directory: Path, raw: Mapping[str, Any], words: Mapping[str, Any], i: int, kind: str) -> BlockVisibility:
    """A layer's window and causality: `is_causal`, then `dflash_config.causal`, then by the layer's type."""
    kinds, inner = words.get("layer_types") or [], inner_part(raw)
    sliding = i < len(kinds) and kinds[i] == "sliding_attention"
    explicit = raw.get("is_causal") if raw.get("is_causal") is not None else inner.get("causal")
    # In the speculators format the switch concerns sliding layers only; full ones always see the whole block.
    # If it is absent, it is true for that format's DFlash2 and false for the others.
    unsaid = kind == DFLASH2 and "speculators_model_type" in raw
    by_type = sliding and not raw.get("sliding_window_non_causal", unsaid)
    everywhere = bool(inner.get("use_swa")) and "sliding_attention" not in kinds
    window = (inner.get("swa_window_size") or words.get("sliding_window")) if sliding or everywhere else 0
    if not isinstance(window, int) or (window < 1 and (sliding or everywhere)):
        raise ModelError(
            f"{directory}: layer {i} slides, but neither dflash_config.swa_window_size nor sliding_window says how far."
        )
    return BlockVisibility(by_type if explicit is None else bool(explicit), window)
