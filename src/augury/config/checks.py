"""What can be told from the two config.json files alone: sizes that must agree, layers that must exist."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from augury.config.errors import ConfigError, shown
from augury.config.facts import ModelFacts, Target
from augury.config.infer import DSPARK_ARCHITECTURES, recognise
from augury.config.notes import Notes
from augury.methods.mtp import family_of, trained_depth
from augury.methods.registry import METHODS

Keys = Mapping[str, Any]


def problem(key: str, value: Any, says: str) -> ConfigError:
    """An error about one key."""
    return ConfigError(f"speculative_config.{key}={shown(value)} {says}.")


def check_against(method: str, keys: Keys, target: Target, draft: ModelFacts | None, notes: Notes) -> None:
    """Everything that a target and a drafter must agree on, as far as both are known."""
    if METHODS[method].weights not in ("none", "import path"):
        _check_parallel(method, keys, target, draft, notes)
        _check_context(method, keys, target, draft)
    if method == "dspark":
        _check_dspark(keys, target, draft)
    if method == "extract_hidden_states":
        _check_layers("draft_model_config", _wanted_layers(keys), target)
    if draft is not None and target.facts is not None:
        _check_sizes(method, keys, target.facts, draft, notes)
        ids = draft.raw.get("eagle_aux_hidden_state_layer_ids")
        if method == "eagle3" and isinstance(ids, list):
            _check_layers("model", ids, target)
    if draft is not None:
        _compare_kinds(method, draft, notes)


def _check_parallel(method: str, keys: Keys, target: Target, draft: ModelFacts | None, notes: Notes) -> None:
    size, whole = keys.get("draft_tensor_parallel_size"), target.tensor_parallel_size
    if size is not None and whole is not None and size not in (1, whole):
        choices = f"1 or {whole}" if whole > 1 else "1"
        raise problem(
            "draft_tensor_parallel_size", size, f"cannot be another value than 1 or the target's; write {choices}"
        )
    if method == "mlp_speculator" and (whole or 1) > 1:
        notes.add("warning", "draft_tensor_parallel_size", "an MLP speculator runs unsharded: taken as 1.")
    heads = draft.heads if draft else None
    if heads and size and heads % size:
        raise problem("draft_tensor_parallel_size", size, f"does not divide the drafter's {heads} heads; write 1")


def _check_context(method: str, keys: Keys, target: Target, draft: ModelFacts | None) -> None:
    length = keys.get("max_model_len")
    if length is None:
        return
    limits = [("the target's", target.max_model_len or (target.facts.context if target.facts else None))]
    if draft is not None and method not in ("eagle", "eagle3"):  # their position limit follows the target's
        limits.append(("the drafter's", draft.context))
    for whose, limit in limits:
        if limit is not None and length > limit:
            raise problem("max_model_len", length, f"cannot be larger than {whose} {limit}; write {limit} or less")


def check_mtp(keys: Keys, target: Target) -> None:
    """Whether the target has the layers that would draft."""
    if target.facts is None or keys.get("model"):
        return
    family, name = family_of(target.raw), target.name or "the target"
    if target.facts.kind == "deepseek_v41":
        raise problem("method", "mtp", "does not fit DeepSeek-V4.1; use 'dspark'")
    if family is None:
        kind = target.facts.kind or "unknown"
        raise problem(
            "method", "mtp", f"needs a target trained with MTP layers; {name} (model_type {kind}) has none known"
        )
    if trained_depth(target.raw) < 1:
        where = family.depth[0] if family.depth else "config.json"
        raise problem(
            "method", "mtp", f"needs MTP weights, but {name} does not contain MTP weights ({where} is 0 or missing)"
        )
    kinds, layers = target.raw.get("mtp_layer_types"), trained_depth(target.raw)
    if target.facts.kind == "dots3_note" and isinstance(kinds, list) and len(kinds) != layers:
        raise problem(
            "method", "mtp", f"needs one entry of mtp_layer_types per layer: {len(kinds)} for {layers} layers in {name}"
        )


def _check_dspark(keys: Keys, target: Target, draft: ModelFacts | None) -> None:
    topk = keys.get("dspark_draft_topk")
    if topk is not None and draft is not None:
        if not any(name in DSPARK_ARCHITECTURES[:2] for name in draft.architectures):
            raise problem(
                "dspark_draft_topk", topk, f"works only with {' or '.join(DSPARK_ARCHITECTURES[:2])}; remove it"
            )
        vocab = draft.number("draft_vocab_size", "vocab_size")
        if vocab is not None and topk > vocab:
            raise problem("dspark_draft_topk", topk, f"is more than the drafter's vocabulary of {vocab}; lower it")
    if target.facts is not None and draft is not None and "qwen3_omni" in target.facts.kind:
        _check_omni(keys, target.facts, draft)


def _check_omni(keys: Keys, target: ModelFacts, draft: ModelFacts) -> None:
    raw = draft.raw
    given, layers, rope = raw.get("target_layer_ids"), target.layers or 0, raw.get("rope_scaling")
    ids = [i for i in given if isinstance(i, int)] if isinstance(given, list) else []
    rising = isinstance(given, list) and ids == given and ids == sorted(set(ids)) and all(0 <= i < layers for i in ids)
    wrong = [
        ("Qwen3OmniDSparkModel" not in draft.architectures, "the architecture Qwen3OmniDSparkModel"),
        (keys.get("num_speculative_tokens") not in (None, 0, raw.get("block_size")), "K equal to its block_size"),
        (draft.hidden_size != target.hidden_size, "the target's hidden_size"),
        (draft.heads != target.heads, "the target's num_attention_heads"),
        (draft.number("head_dim") != target.number("head_dim"), "the target's head_dim"),
        (not rising, "rising target_layer_ids in range"),
        (raw.get("use_aux_hidden_state") is not True, "use_aux_hidden_state true"),
        (not (draft.number("markov_rank") or 0) > 0, "markov_rank above 0"),
        (raw.get("markov_head_type") != "vanilla", "markov_head_type 'vanilla'"),
        (raw.get("sample_from_anchor") is not True, "sample_from_anchor true"),
        (raw.get("dspark_bonus_anchor", False) is not False, "dspark_bonus_anchor false"),
        (draft.vocab_size != target.vocab_size, "the target's vocab_size"),
        (not 0 <= (draft.number("mask_token_id") or 0) < (target.vocab_size or 0), "mask_token_id in the vocabulary"),
        (isinstance(rope, Mapping) and "mrope_section" in rope, "no mrope"),
    ]
    missing = next((text for is_wrong, text in wrong if is_wrong), None)
    if missing:
        raise problem("model", draft.name, f"does not fit a Qwen3-Omni target: a DSpark drafter needs {missing}")


def _check_sizes(method: str, keys: Keys, target: ModelFacts, draft: ModelFacts, notes: Notes) -> None:
    if method == "draft_model" and not keys.get("use_heterogeneous_vocab"):
        _check_vocabulary(target, draft, notes)
    expected = draft.number("target_hidden_size") or draft.hidden_size
    if method in ("eagle", "eagle3", "medusa", "dflash") and expected and target.hidden_size != expected:
        raise problem(
            "model", draft.name,
            f"was trained on hidden size {expected}, the target has {target.hidden_size}: it belongs to another target",
        )  # fmt: skip
    if method == "mlp_speculator" and draft.number("emb_dim") not in (None, target.hidden_size):
        raise problem(
            "model", draft.name, f"reads states of width {draft.number('emb_dim')}, the target has {target.hidden_size}"
        )
    small = draft.number("draft_vocab_size")
    if small is not None and target.vocab_size and small > target.vocab_size:
        raise problem("model", draft.name, f"drafts from {small} tokens, more than the target's {target.vocab_size}")


def _check_vocabulary(target: ModelFacts, draft: ModelFacts, notes: Notes) -> None:
    ours, theirs = draft.vocab_size, target.vocab_size
    if ours is None or theirs is None:
        return
    same = _same_tokens(target, draft)
    if ours == theirs:
        if same is False:
            raise problem(
                "model", draft.name, "has another tokenizer than the target, though as many tokens; take a drafter of "
                "the target's family, or set use_heterogeneous_vocab",
            )  # fmt: skip
        return
    if same:
        notes.add(
            "vllm", "model", f"the drafter's {ours} and the target's {theirs} tokens differ by padding alone; "
            "vLLM refuses that.", refused=True,
        )  # fmt: skip
        return
    raise problem(
        "model", draft.name,
        f"must have the same vocabulary size as the target: {ours} against {theirs}; take a drafter of the target's "
        "family, or set use_heterogeneous_vocab",
    )  # fmt: skip


def _same_tokens(target: ModelFacts, draft: ModelFacts) -> bool | None:
    """Whether both tokenizers map the same texts to numbers that the drafter has rows for; None: they are not at hand.

    Sizes then differ by padded rows only.
    """
    tables: list[dict[str, int]] = []
    for facts in (target, draft):
        try:
            assert facts.directory is not None
            tokenizer = json.loads((facts.directory / "tokenizer.json").read_text(encoding="utf-8"))
            tables.append(tokenizer["model"]["vocab"])
        except (AssertionError, OSError, ValueError, KeyError, TypeError):
            return None
    return tables[0] == tables[1] and max(tables[0].values(), default=0) < (draft.vocab_size or 0)


def _wanted_layers(keys: Keys) -> list[int]:
    inner = (keys.get("draft_model_config") or {}).get("hf_config")
    ids = inner.get("eagle_aux_hidden_state_layer_ids") if isinstance(inner, Mapping) else None
    if not isinstance(ids, list) or not ids or not all(isinstance(i, int) for i in ids):
        raise ConfigError(
            "speculative_config.draft_model_config must name the layers to save; write for example "
            '{"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 18, 34]}}.'
        )
    return ids


def _check_layers(key: str, ids: list[Any], target: Target) -> None:
    layers = target.facts.layers if target.facts else None
    wrong = [i for i in ids if not isinstance(i, int) or i < 0 or (layers is not None and i > layers)]
    if wrong:
        limit = f"0 to {layers}" if layers is not None else "0 or more"
        raise ConfigError(f"speculative_config.{key}: layer ids {ids} must be {limit}; {wrong[0]} is not.")


def _compare_kinds(method: str, draft: ModelFacts, notes: Notes) -> None:
    told = recognise(draft.raw)
    if told and told.method != method:
        notes.add(
            "warning", "method", f"you asked for {method!r}, but {told.why}: it looks like {told.method!r}. "
            "A head run by the wrong method drafts, and almost nothing is accepted.",
        )  # fmt: skip
