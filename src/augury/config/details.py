"""The rule that accepts drafts, bounds that mirror each other, and keys that do nothing here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from augury.config.checks import problem
from augury.config.errors import ConfigError
from augury.config.facts import is_local
from augury.config.keys import Key
from augury.config.notes import Kind, Notes
from augury.config.schedule import Schedule
from augury.config.synthetic import check_rates, rates_for_length
from augury.config.tree_literal import read_tree
from augury.methods.registry import METHODS, readers

if TYPE_CHECKING:
    from augury.config.speculative import SpeculativeConfig

Keys = dict[str, Any]
BLOCK_NEEDS = 3  # tokens; with fewer vllm-ascend verifies one by one


def settle_rule(keys: Keys, notes: Notes) -> None:
    """Which rule accepts drafts, told from its parameters where it is not named."""
    for wanted, because in _rules_meant(keys, notes):
        if "rejection_sample_method" not in keys:
            notes.add("inferred", "rejection_sample_method", f"{wanted!r}, because {because} is given.")
        named = keys.setdefault("rejection_sample_method", wanted)
        if named != wanted:
            raise ConfigError(
                f"speculative_config.{because} is only valid with rejection_sample_method={wanted!r}, not {named!r}; "
                "remove one of them."
            )
    if keys.get("rejection_sample_method") == "synthetic":
        _settle_synthetic(keys, notes)
    if keys.get("rejection_sample_method") == "ascend_block" and keys["num_speculative_tokens"] < BLOCK_NEEDS:
        notes.add("warning", "rejection_sample_method", f"a block needs {BLOCK_NEEDS} tokens; fewer are verified one "
                  "by one.")  # fmt: skip


def _rules_meant(keys: Keys, notes: Notes) -> list[tuple[str, str]]:
    meant = [("typical", name) for name in ("posterior_threshold", "posterior_alpha") if keys.get(name) is not None]
    sampler = keys.get("rejection_sampler_config")
    if sampler is not None:
        if sampler.enable_block_verify:
            meant.append(("ascend_block", "rejection_sampler_config.enable_block_verify"))
        elif sampler.enable_entropy_verify:
            meant.append(("entropy", "rejection_sampler_config.enable_entropy_verify"))
        elif keys.get("rejection_sample_method") not in ("entropy", "ascend_block"):
            notes.add("unused", "rejection_sampler_config", "neither of its two switches is on.")
    for name in ("synthetic_acceptance_rates", "synthetic_acceptance_length"):
        # vLLM does not take these for the rule itself: they must stand beside it.
        if keys.get(name) is not None and keys.get("rejection_sample_method") != "synthetic":
            raise ConfigError(
                f"speculative_config.{name} is only valid with rejection_sample_method='synthetic'; add that."
            )
    return meant


def _settle_synthetic(keys: Keys, notes: Notes) -> None:
    rates, length = keys.get("synthetic_acceptance_rates"), keys.get("synthetic_acceptance_length")
    if (rates is None) == (length is None):
        raise ConfigError(
            "speculative_config.rejection_sample_method='synthetic' needs exactly one of synthetic_acceptance_rates "
            f"and synthetic_acceptance_length; {'neither is' if rates is None else 'both are'} given."
        )
    if rates is None:
        keys["synthetic_acceptance_rates"] = rates_for_length(
            keys.pop("synthetic_acceptance_length"), keys["num_speculative_tokens"]
        )
        rates = keys["synthetic_acceptance_rates"]
        notes.add("inferred", "synthetic_acceptance_rates", f"{rates}, for that acceptance length.")
    check_rates(keys["synthetic_acceptance_rates"], keys["num_speculative_tokens"])


def settle_details(method: str, keys: Keys, notes: Notes) -> None:
    """Defaults that depend on other keys, and combinations that cannot be."""
    if method in ("ngram", "ngram_gpu"):
        _settle_lookup(keys, notes)
    if keys.get("num_speculative_tokens_per_batch_size"):
        table, most = keys["num_speculative_tokens_per_batch_size"], keys["num_speculative_tokens"]
        Schedule.read(table, most)
        if any(entry[2] > most for entry in table):
            notes.add(
                "warning", "num_speculative_tokens_per_batch_size", f"K never exceeds num_speculative_tokens={most}."
            )
    elif "num_speculative_tokens_per_batch_size" in keys:
        del keys["num_speculative_tokens_per_batch_size"]
        notes.add("unused", "num_speculative_tokens_per_batch_size", "an empty table means no table.")
    if method in ("dflash", "dspark"):
        if not keys.get("parallel_drafting", False):
            kind: Kind = "warning" if "parallel_drafting" in keys else "inferred"
            notes.add(kind, "parallel_drafting", f"true: {method} always drafts in parallel.")
        keys["parallel_drafting"] = True
    if (keys.get("attention_backend") or "").lower() == "auto":
        del keys["attention_backend"]
        notes.add("inferred", "attention_backend", "left open, which is what 'auto' means.")
    elif keys.get("attention_backend"):
        keys["attention_backend"] = keys["attention_backend"].upper()
    _settle_tree(keys)
    _refuse_combinations(method, keys)


def _settle_lookup(keys: Keys, notes: Notes) -> None:
    given = low, high = keys.get("prompt_lookup_min"), keys.get("prompt_lookup_max")
    low, high = low or high or 5, high or low or 5  # vLLM's defaults: 5 and 5, or each the other's value
    if given == (None, None):
        notes.add("inferred", "prompt_lookup_max", "5, and prompt_lookup_min too: neither is given.")
    if low > high:
        raise problem(
            "prompt_lookup_min", low, f"must be <= prompt_lookup_max={high}; lower the first or raise the second"
        )
    keys["prompt_lookup_min"], keys["prompt_lookup_max"] = low, high


def _settle_tree(keys: Keys) -> None:
    literal = keys.get("speculative_token_tree")
    if literal is None:
        return
    if keys.get("tree") is not None:
        raise ConfigError("speculative_config.tree and speculative_token_tree both describe a tree; keep one.")
    paths = read_tree(literal)
    if keys["num_speculative_tokens"] != len(paths):
        raise problem("num_speculative_tokens", keys["num_speculative_tokens"],
                      f"does not fit speculative_token_tree, which needs {len(paths)}; write that")  # fmt: skip
    keys["speculative_token_tree"] = str(paths)


def _refuse_combinations(method: str, keys: Keys) -> None:
    if keys.get("index_share_for_mtp_iteration") is not None and method != "mtp":
        raise problem(
            "index_share_for_mtp_iteration",
            keys["index_share_for_mtp_iteration"],
            "works only with method='mtp'; remove it",
        )
    if keys.get("enable_adaptive_verification") and keys.get("use_local_argmax_reduction") and method != "dspark":
        raise problem(
            "enable_adaptive_verification", True, "does not go with use_local_argmax_reduction; disable one of them"
        )
    if keys.get("use_heterogeneous_vocab"):
        if method != "draft_model":
            raise problem(
                "use_heterogeneous_vocab", True, f"works only with method='draft_model', not {method!r}; remove it"
            )
        if keys.get("draft_sample_method", "greedy") != "greedy":
            raise problem("use_heterogeneous_vocab", True, "needs greedy drafts; remove draft_sample_method")
    topk = keys.get("dspark_draft_topk")
    if topk is not None and method != "dspark" and METHODS[method].weights in ("draft", "target"):
        raise problem("dspark_draft_topk", topk, f"works only with method='dspark', not {method!r}; remove it")
    if keys.get("draft_model_config") is not None and method != "extract_hidden_states":
        raise problem("draft_model_config", keys["draft_model_config"],
                      "is filled in by the engine for every method but extract_hidden_states; remove it")  # fmt: skip


def name_served(config: SpeculativeConfig, notes: Notes) -> None:
    """Say where another rule or another way to draft runs than the one that is written."""
    if config.draft_sample_method == "probabilistic" and config.drafts_trees:
        notes.add("unused", "draft_sample_method", "a tree takes the likeliest children; they are not sampled.")
    if config.rule != config.rejection_sample_method:
        says = f"drafts are not sampled, so `coupled` serves {config.rejection_sample_method!r}: no rule accepts more."
        notes.add("inferred", "rejection_sample_method", says)


def name_unused(method: str, keys: Keys, declared: Mapping[str, Key], notes: Notes) -> None:
    """Say which of the user's keys the method does not read, or this engine does not act on."""
    for name, value in keys.items():
        if value == declared[name].default or name in ("method", "model"):
            continue
        users = readers(name)
        if users and method not in users:
            notes.add("unused", name, f"{method} does not read it (it is for {', '.join(users)}).")
        elif not declared[name].runs:
            notes.add("unused", name, "kept for vLLM; this engine does not act on it.")
        elif name == "revision" and (keys.get("model") is None or is_local(keys["model"])):
            why = "model is on this disk" if keys.get("model") else "the drafting layers lie in the target's own files"
            notes.add("unused", name, f"{why}; only a checkpoint on the hub has revisions.")
