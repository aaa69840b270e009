"""Which method, which drafter, how many tokens: what the user left open is told from the checkpoints, with a note."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from augury.config.checks import problem
from augury.config.errors import ConfigError, shown
from augury.config.facts import ModelFacts, Target, find
from augury.config.infer import choose, is_import_path, vllm_choice
from augury.config.notes import Notes
from augury.config.tree_literal import read_tree
from augury.config.versions import NEWEST
from augury.methods.mtp import REPEATS_QUIETLY, family_of, trained_depth
from augury.methods.registry import ALIASES, METHODS
from augury.methods.spec import Facts, whole

Keys = dict[str, Any]
EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'
TOLD_BY_VLLM = ("suffix", "mlp_speculator", "dspark", "draft_model", "eagle", "eagle3")  # methods whose K it can find


def settle_method(keys: Keys, target: Target, draft: ModelFacts | None, notes: Notes) -> str:
    """The method by name, told from the drafter where none is named."""
    given, model = keys.get("method") or "", keys.get("model")
    if given and given not in METHODS and given not in ALIASES:
        close = get_close_matches(given.strip("[]").lower(), [*METHODS, *ALIASES], n=1)
        hint = f"did you mean {close[0]!r}?" if close else "methods: " + ", ".join(METHODS) + "."
        raise ConfigError(f"speculative_config.method={shown(given)} is unknown; {hint}")
    choice = choose(given, model, draft.raw if draft else {})
    if choice is None:
        better = "; the target has MTP layers: write method='mtp'" if trained_depth(target.raw) else ""
        raise ConfigError(
            "speculative_config.method is missing, without speculative model to tell it from; name one, for example "
            f"{EXAMPLE}{better}."
        )
    if given in ALIASES:
        notes.add("warning", "method", f"{given!r} is deprecated and replaced with {choice.method!r}.")
    elif not given:
        notes.add("inferred", "method", f"{choice.method!r}, because {choice.why}.")
    _compare_with_vllm(given, model, choice.method, target, draft, notes)
    keys["method"] = choice.method
    return choice.method


def _compare_with_vllm(
    given: str, model: str | None, ours: str, target: Target, draft: ModelFacts | None, notes: Notes
) -> None:
    inside = ours == "mtp" and model is None
    unread = draft is None and model is not None and ours in ("mtp", "medusa", "mlp_speculator")
    if (inside and target.facts is None) or unread:
        return  # what vLLM reads is not here to be read
    theirs = vllm_choice(given, target.name if inside else model, target.raw if inside else draft.raw if draft else {})
    if theirs is None:
        says = f'vLLM {NEWEST} raises "Unsupported speculative method" for {ours!r} here.'
        notes.add("vllm", "method", says, refused=True)
    elif theirs != ours:
        stands = f" by its own detection; here your {ours!r} stands" if given else ""
        notes.add("vllm", "method", f"vLLM {NEWEST} would take {theirs!r}{stands}.")


def settle_model(method: str, keys: Keys, draft: ModelFacts | None, notes: Notes) -> None:
    """Whether the method has what it drafts with."""
    card, model = METHODS[method], keys.get("model")
    if card.weights == "none":
        if model is not None and model not in (method, f"[{method}]"):
            notes.add("unused", "model", f"{method} has no model; {shown(model)} is not loaded.")
        keys.pop("model", None)
    elif card.weights == "import path":
        if model is None:
            raise ConfigError(
                "speculative_config.model is missing: custom_class needs a module path; write 'package.module.Class'."
            )
        if not is_import_path(model):
            raise problem("model", model, "must be a dotted import path such as 'package.module.Class'")
    elif model is None and card.weights == "draft":
        raise ConfigError(
            f"speculative_config.model is missing: num_speculative_tokens was provided without speculative model, and "
            f"{method} needs one; write its directory or hub id."
        )
    elif model is None:
        notes.add("inferred", "model", "the target's own files, which carry the drafting layers.")
    elif draft is None:
        missing = "has no config.json" if find(model, keys.get("revision")) else "is not on this machine"
        notes.add("unchecked", "model", f"{shown(model)} {missing}; nothing was compared with it.")
    elif draft.raw.get("speculators_model_type") == "peagle" and not keys.get("parallel_drafting"):
        keys["parallel_drafting"] = True
        notes.add("inferred", "parallel_drafting", "true, because the checkpoint is a P-EAGLE head.")


def settle_tokens(
    method: str, keys: Keys, defaults: Mapping[str, Any], target: Target, draft: ModelFacts | None, notes: Notes
) -> None:
    """K: given, or told from the checkpoint; checked against it in both cases."""
    known: dict[str, Any] = {**(draft.text if draft else {}), **(draft.raw if draft else {})}
    if method == "mtp":
        known["n_predict"] = mtp_depth(target, draft) or known.get("n_predict")
    facts = Facts(known, {**defaults, **keys})
    if not keys.get("num_speculative_tokens"):
        keys["num_speculative_tokens"] = _default_tokens(method, keys, facts, draft, notes)
    tokens = keys["num_speculative_tokens"]
    literal = keys.get("speculative_token_tree")
    deepest = max(map(len, read_tree(literal))) if literal else tokens
    wrong = METHODS[method].check_tokens(deepest, facts) if deepest < tokens or not literal else None
    if wrong:
        raise problem("num_speculative_tokens", tokens, wrong)
    family = family_of(draft.raw if draft else target.raw)
    noticed = family is None or family.alias not in REPEATS_QUIETLY
    if method == "mtp" and noticed and tokens > (whole(known.get("n_predict")) or 1):
        says = "one MTP layer is run repeatedly beyond its depth; acceptance falls."
        notes.add("warning", "num_speculative_tokens", says)


def mtp_depth(target: Target, draft: ModelFacts | None) -> int:
    """How many tokens ahead the MTP layers were trained to see; 0: unknown."""
    return trained_depth(draft.raw if draft else target.raw)


def _default_tokens(method: str, keys: Keys, facts: Facts, draft: ModelFacts | None, notes: Notes) -> int:
    tree = keys.get("speculative_token_tree")
    if tree is not None:
        count = len(read_tree(tree))
        notes.add("inferred", "num_speculative_tokens", f"{count}, the nodes of speculative_token_tree.")
        return count
    found = METHODS[method].default_tokens(facts) or _speculators_tokens(draft)
    if found is None:
        raise ConfigError(
            f"speculative_config.num_speculative_tokens was not provided and cannot be told for {method!r}; "
            'it must be provided, for example {"num_speculative_tokens": 4}.'
        )
    refused = method not in TOLD_BY_VLLM
    aside = "; vLLM wants it written out" if refused else ""
    notes.add("inferred", "num_speculative_tokens", f"{found[0]}, from {found[1]}{aside}.", refused)
    return found[0]


def _speculators_tokens(draft: ModelFacts | None) -> tuple[int, str] | None:
    inner = draft.raw.get("speculators_config") if draft else None
    methods = inner.get("proposal_methods") if isinstance(inner, Mapping) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    tokens = whole(first.get("speculative_tokens")) if isinstance(first, Mapping) else None
    return (tokens, "the checkpoint's speculators_config") if tokens else None
