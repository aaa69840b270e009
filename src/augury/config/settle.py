"""Which method, which drafter, how many tokens: what the user left open is told from the checkpoints, with a note."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from augury.config.checks import problem
from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts, Target
from augury.config.infer import choose, vllm_choice
from augury.config.notes import Notes
from augury.config.tree_literal import read_tree
from augury.methods.mtp import trained_depth
from augury.methods.registry import ALIASES, METHODS
from augury.methods.spec import Facts

Keys = dict[str, Any]
EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'


def settle_method(keys: Keys, target: Target, draft: ModelFacts | None, notes: Notes) -> str:
    given, model = keys.get("method") or "", keys.get("model")
    if given and given not in METHODS and given not in ALIASES:
        close = get_close_matches(given.strip("[]"), [*METHODS, *ALIASES], n=1)
        hint = f"did you mean {close[0]!r}?" if close else "methods: " + ", ".join(METHODS) + "."
        raise ConfigError(f"speculative_config.method={given!r} is unknown; {hint}")
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
    if (inside and target.facts is None) or (draft is None and model is not None and ours in ("mtp", "medusa")):
        return  # what vLLM reads is not here to be read
    theirs = vllm_choice(given, target.name if inside else model, target.raw if inside else draft.raw if draft else {})
    if theirs is None:
        notes.add(
            "vllm", "method", f'vLLM 0.32 raises "Unsupported speculative method" for {ours!r} here.', refused=True
        )
    elif theirs != ours:
        notes.add("vllm", "method", f"vLLM 0.32 would take {theirs!r} by its own detection; here your {ours!r} stands."
                  if given else f"vLLM 0.32 would take {theirs!r}.")  # fmt: skip


def settle_model(method: str, keys: Keys, draft: ModelFacts | None, notes: Notes) -> None:
    card, model = METHODS[method], keys.get("model")
    if card.weights == "none":
        if model is not None and model not in (method, f"[{method}]"):
            notes.add("unused", "model", f"{method} has no model; {model!r} is not loaded.")
        keys.pop("model", None)
    elif card.weights == "import path":
        if model is None:
            raise ConfigError(
                "speculative_config.model is missing: custom_class needs a module path; write 'package.module.Class'."
            )
        if "." not in model:
            raise problem("model", model, "must be a dotted import path such as 'package.module.Class'")
    elif model is None and card.weights == "draft":
        raise ConfigError(
            f"speculative_config.model is missing: num_speculative_tokens was provided without speculative model, and "
            f"{method} needs one; write its directory or hub id."
        )
    elif model is None:
        notes.add("inferred", "model", "the target's own files, which carry the drafting layers.")
    elif draft is None:
        notes.add("unchecked", "model", f"{model!r} is not on this machine; nothing was compared with its config.json.")


def settle_tokens(method: str, keys: Keys, target: Target, draft: ModelFacts | None, notes: Notes) -> None:
    card = METHODS[method]
    known: dict[str, Any] = {**(draft.text if draft else {}), **(draft.raw if draft else {})}
    if method == "mtp" and draft is None and trained_depth(target.raw):
        known["n_predict"] = trained_depth(target.raw)
    elif method == "mtp" and draft is not None:
        known["n_predict"] = trained_depth(draft.raw) or known.get("n_predict")
    if not keys.get("num_speculative_tokens"):
        keys["num_speculative_tokens"] = _default_tokens(method, keys, Facts(known, keys), draft, notes)
    wrong = card.check_tokens(keys["num_speculative_tokens"], Facts(known, keys))
    if wrong:
        raise problem("num_speculative_tokens", keys["num_speculative_tokens"], wrong)
    if method == "mtp" and keys["num_speculative_tokens"] > 1:
        depth = known.get("n_predict")
        if depth is None or keys["num_speculative_tokens"] > depth:
            notes.add(
                "warning",
                "num_speculative_tokens",
                "one MTP layer is run repeatedly beyond its depth; acceptance falls.",
            )


def _default_tokens(method: str, keys: Keys, facts: Facts, draft: ModelFacts | None, notes: Notes) -> int:
    tree = keys.get("speculative_token_tree")
    if tree is not None:
        return len(read_tree(tree))
    found = METHODS[method].default_tokens(facts) or _speculators_tokens(draft)
    if found is None:
        raise ConfigError(
            f"speculative_config.num_speculative_tokens was not provided and cannot be told for {method!r}; "
            'it must be provided, for example {"num_speculative_tokens": 4}.'
        )
    notes.add(
        "inferred",
        "num_speculative_tokens",
        f"{found[0]}, from {found[1]}.",
        refused=method in ("mtp", "medusa", "dflash"),
    )
    return found[0]


def _speculators_tokens(draft: ModelFacts | None) -> tuple[int, str] | None:
    inner = draft.raw.get("speculators_config") if draft else None
    methods = inner.get("proposal_methods") if isinstance(inner, Mapping) else None
    tokens = (
        methods[0].get("speculative_tokens")
        if isinstance(methods, list) and methods and isinstance(methods[0], Mapping)
        else None
    )
    return (tokens, "the checkpoint's speculators_config") if isinstance(tokens, int) and tokens > 0 else None
