"""Defaults that depend on other keys, invalid combinations, and keys that have no effect here."""

from __future__ import annotations

from collections.abc import Iterator

from augury.config.errors import ConfigError, problem
from augury.config.facts import is_local
from augury.config.read import KEYS
from augury.config.schedule import Schedule
from augury.config.speculative import SpeculativeConfig
from augury.config.tree_literal import read_tree
from augury.methods.notes import Kind, Note
from augury.methods.registry import readers
from augury.methods.spec import Case, Change, Method

ONLY_READERS = {  # keys that other methods refuse instead of ignoring, and the wording
    "index_share_for_mtp_iteration": "works only with method={0!r}; remove it",
    "use_heterogeneous_vocab": "works only with method={0!r}, not {1!r}; remove it",
    "dspark_draft_topk": "works only with method={0!r}, not {1!r}; remove it",
    "drafters": "works only with method={0!r}, not {1!r}; remove it",
    "draft_model_config": "is filled in by the engine for every method but {0}; remove it",
}


def settle_schedule(case: Case) -> Change:
    """Check the table of K by batch size."""
    name = "num_speculative_tokens_per_batch_size"
    table, most = case.keys.get(name), case.keys["num_speculative_tokens"]
    if table is None:
        return Change()
    if not table:
        return Change({name: None}, (Note("unused", name, "an empty table means no table."),))
    Schedule.read(table, most)
    capped = any(entry[2] > most for entry in table)
    return Change(notes=(Note("warning", name, f"K never exceeds num_speculative_tokens={most}."),) if capped else ())


def settle_parallel(card: Method, case: Case) -> Change:
    """Set parallel_drafting for methods that always draft in parallel."""
    if not card.always_parallel:
        return Change()
    kind: Kind = "warning" if "parallel_drafting" in case.keys else "inferred"
    says = Note(kind, "parallel_drafting", f"true: {card.name} always drafts in parallel.")
    return Change({"parallel_drafting": True}, () if case.keys.get("parallel_drafting") else (says,))


def settle_attention(case: Case) -> Change:
    """Put the backend's name in upper case; `auto` means none."""
    backend = case.keys.get("attention_backend") or ""
    if backend.lower() == "auto":
        says = Note("inferred", "attention_backend", "left open, which is what 'auto' means.")
        return Change({"attention_backend": None}, (says,))
    return Change({"attention_backend": backend.upper()} if backend else {})


def settle_tree(case: Case) -> Change:
    """Put a tree written as paths in level order, and check that K is its number of nodes."""
    literal, tokens = case.keys.get("speculative_token_tree"), case.keys["num_speculative_tokens"]
    if literal is None:
        return Change()
    if case.keys.get("tree") is not None:
        raise ConfigError("speculative_config.tree and speculative_token_tree both describe a tree; keep one.")
    paths = read_tree(literal)
    if tokens != len(paths):
        says = f"does not fit speculative_token_tree, which needs {len(paths)}; write that"
        raise problem("num_speculative_tokens", tokens, says)
    return Change({"speculative_token_tree": str(paths)})


def refuse_combinations(card: Method, case: Case) -> Change:
    """Refuse keys that do not go with the method, or with each other."""
    keys = case.keys
    adapts_in_shards = keys.get("enable_adaptive_verification") and keys.get("use_local_argmax_reduction")
    if adapts_in_shards and not card.shards_adaptively:
        says = "does not go with use_local_argmax_reduction; disable one of them"
        raise problem("enable_adaptive_verification", True, says)
    for name, says in ONLY_READERS.items():
        unread = name == "dspark_draft_topk" and not card.has_weights
        if keys.get(name, KEYS[name].default) != KEYS[name].default and card.name not in readers(name) and not unread:
            raise problem(name, keys[name], says.format(readers(name)[0], card.name))
    if keys.get("use_heterogeneous_vocab") and keys.get("draft_sample_method", "greedy") != "greedy":
        raise problem("use_heterogeneous_vocab", True, "needs greedy drafts; remove draft_sample_method")
    return Change()


def name_served(config: SpeculativeConfig) -> Iterator[Note]:
    """Note where the acceptance rule or the way of drafting that runs is not the one that was written."""
    if config.draft_sample_method == "probabilistic" and config.drafts_trees:
        yield Note("unused", "draft_sample_method", "a tree takes the likeliest children; they are not sampled.")
    if config.rule != config.rejection_sample_method:
        says = f"drafts are not sampled, so `coupled` serves {config.rejection_sample_method!r}: no rule accepts more."
        yield Note("inferred", "rejection_sample_method", says)


def name_unused(card: Method, case: Case) -> Iterator[Note]:
    """Say which of the user's keys the method does not read, or this engine does not act on."""
    model = case.keys.get("model")
    for name, value in case.keys.items():
        if value == KEYS[name].default or name in ("method", "model"):
            continue
        users = readers(name)
        if users and card.name not in users:
            yield Note("unused", name, f"{card.name} does not read it (it is for {', '.join(users)}).")
        elif not KEYS[name].runs:
            yield Note("unused", name, "kept for vLLM; this engine does not act on it.")
        elif name == "revision" and (model is None or is_local(model)):
            why = "model is on this disk" if model else "the drafting layers are in the target's own files"
            yield Note("unused", name, f"{why}; only a checkpoint on the hub has revisions.")
