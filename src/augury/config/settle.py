"""Method, drafter, number of tokens: what the user left open is inferred from the checkpoints, with a note."""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import partial
from typing import Any

from augury.config.errors import ConfigError, problem, shown
from augury.config.facts import find
from augury.config.read import EXAMPLE, KEYS
from augury.config.releases import known_to
from augury.config.speculators import stated_tokens
from augury.config.tree_literal import read_tree
from augury.config.versions import NEWEST
from augury.methods.mtp import trained_depth
from augury.methods.notes import Note
from augury.methods.recognise import SPECULATORS, choose, is_import_path, vllm_view
from augury.methods.registry import ALIASES, METHODS
from augury.methods.spec import Case, Change, Method

ADAPTS = Note("inferred", "adaptive", "true, because num_speculative_tokens is not given.", refused=True)
ADAPTIVE_TOKENS = 3  # largest K of an adaptive drafter with weights whose checkpoint does not state one
DEFAULTS = {name: key.default for name, key in KEYS.items()}


def settle_method(case: Case, as_of: str | None = None) -> Change:
    """Settle the method: as named, else inferred from the drafter; for a vLLM release, the one that it would run."""
    given, model = case.keys.get("method") or "", case.keys.get("model")
    if given and given not in METHODS and given not in ALIASES:
        raise ConfigError(f"speculative_config.method={shown(given)} is unknown; {_meant(given)}")
    choice = choose(given, model, case.draft.raw if case.draft else {}, case.target)
    if choice is None:
        better = "; the target has MTP layers: write method='mtp'" if trained_depth(case.target.raw) else ""
        raise ConfigError(
            "speculative_config.method is missing, and cannot be inferred without a speculative model; name one, for "
            f"example {EXAMPLE}{better}."
        )
    ours, notes = choice.method, []
    if given in ALIASES:
        notes.append(Note("warning", "method", f"{given!r} is deprecated and replaced with {ours!r}."))
    elif not given:
        notes.append(Note("inferred", "method", f"{ours!r}, because {choice.why}."))
    theirs = vllm_view(given, METHODS[ours], model, case.target, case.draft, partial(known_to, as_of or NEWEST))
    if theirs is None:
        says = f'vLLM {NEWEST} raises "Unsupported speculative method" for {ours!r} here.'
        notes.append(Note("vllm", "method", says, refused=True))
    elif theirs not in ("", ours) and as_of is not None and known_to(as_of, METHODS[ours]):
        notes = [note for note in notes if note.kind != "inferred"]
        notes.append(Note("vllm", "method", f"vLLM {as_of} takes {theirs!r} by its own detection, not {ours!r}."))
        ours = theirs
    elif theirs not in ("", ours):
        stands = f" by its own detection; here your {ours!r} stands" if given else ""
        notes.append(Note("vllm", "method", f"vLLM {NEWEST} would take {theirs!r}{stands}."))
    return Change({"method": ours}, tuple(notes))


def _meant(given: str) -> str:
    """A hint for an unknown name: it may be a kind of head, which is a method with settings, or a misspelling."""
    plain = given.replace("-", "").replace("_", "").lower()
    for name, card in METHODS.items():
        kind = card.signs.speculators.get(plain)
        if kind is not None and kind.fixes:
            keys = ", ".join(f'"{key}": {json.dumps(value)}' for key, value in kind.fixes.items())
            return f'write {{"method": "{name}", {keys}}}.'
    close = get_close_matches(given.strip("[]").lower(), [*METHODS, *ALIASES], n=1)
    return f"did you mean {close[0]!r}?" if close else "methods: " + ", ".join(METHODS) + "."


def settle_model(card: Method, as_of: str | None, case: Case) -> Change:
    """Check that `model` is what the method drafts with: a drafter, an import path or nothing."""
    model, draft = case.keys.get("model"), case.draft
    if card.weights == "none":
        unused = model is not None and model not in (card.name, f"[{card.name}]")
        says = Note("unused", "model", f"{card.name} has no model; {shown(model)} is not loaded.")
        return Change({"model": None}, (says,) if unused else ())
    if card.weights == "import path":
        if model is None:
            raise ConfigError(
                f"speculative_config.model is missing: {card.name} needs a module path; write 'package.module.Class'."
            )
        if not is_import_path(model):
            raise problem("model", model, "must be a dotted import path such as 'package.module.Class'")
        return Change()
    if model is None and card.weights == "draft":
        raise ConfigError(
            f"speculative_config.model is missing: {card.name} cannot draft without a speculative model; write the "
            "drafter's directory or hub id."
        )
    if model is None:
        return Change(notes=(Note("inferred", "model", "the target's own files, which carry the drafting layers."),))
    if draft is None:
        missing = "has no config.json" if find(model, case.keys.get("revision")) else "is not on this machine"
        return Change(notes=(Note("unchecked", "model", f"{shown(model)} {missing}, so it was not checked."),))
    return _fixed(str(draft.raw.get("speculators_model_type")), case, as_of)


def _fixed(kind: str, case: Case, as_of: str | None) -> Change:
    """The keys that a speculators-format checkpoint sets; vLLM applies them only if it is the served model."""
    if kind not in SPECULATORS:
        return Change()
    _, known = SPECULATORS[kind]
    fixes = {name: value for name, value in known.fixes.items() if not case.keys.get(name)}
    if as_of is not None:
        unheard = [Note("warning", k, f"write {json.dumps({k: v})}: this is {known.what}.") for k, v in fixes.items()]
        return Change(notes=tuple(unheard))
    says = f"because the checkpoint is {known.what}."
    return Change(fixes, tuple(Note("inferred", name, f"{str(v).lower()}, {says}") for name, v in fixes.items()))


def settle_tokens(card: Method, as_of: str | None, case: Case) -> Change:
    """Settle K: as given, else inferred from the checkpoint; checked against it in both cases."""
    literal = case.keys.get("speculative_token_tree")
    notes: tuple[Note, ...] = ()
    full = case._replace(keys={**DEFAULTS, **case.keys})
    tokens, settled = case.keys.get("num_speculative_tokens"), dict[str, Any]()
    if not tokens:
        tokens, notes = _default_tokens(card, full, as_of is None and case.keys.get("adaptive") is not False)
        settled = {"adaptive": True} if ADAPTS in notes else {}
    deepest = max(map(len, read_tree(literal))) if literal else tokens
    wrong = card.check_tokens(deepest, full) if deepest < tokens or not literal else None
    if wrong and as_of is not None and not card.vllm_checks_tokens:
        notes = (*notes, Note("warning", "num_speculative_tokens", f"{tokens} {wrong}: vLLM starts all the same."))
    elif wrong:
        raise problem("num_speculative_tokens", tokens, wrong)
    if says := card.remark_tokens(tokens, full):
        notes = (*notes, Note("warning", "num_speculative_tokens", says))
    return Change({"num_speculative_tokens": tokens, **settled}, notes)


def _default_tokens(card: Method, case: Case, may_adapt: bool) -> tuple[int, tuple[Note, ...]]:
    """K where none is given; our engine then drafts adaptively up to it, unless told not to."""
    tree = case.keys.get("speculative_token_tree")
    if tree is not None:
        count = len(read_tree(tree))
        return count, (Note("inferred", "num_speculative_tokens", f"{count}, the nodes of speculative_token_tree."),)
    told = card.default_tokens(case)
    found = told or stated_tokens(case.draft)
    adapts = may_adapt and not case.keys.get("num_speculative_tokens_per_batch_size")
    if found is None and (adapts or case.keys.get("adaptive")):
        longest = max(card.look_up.lengths) if card.look_up else ADAPTIVE_TOKENS
        found = longest, "what adaptive drafting may go up to"
    if found is None:
        raise ConfigError(
            f"speculative_config.num_speculative_tokens was not provided and cannot be told for {card.name!r}; "
            'it must be provided, for example {"num_speculative_tokens": 4}.'
        )
    alike = card.vllm_tells_tokens and told is not None
    says = f"{found[0]}, from {found[1]}{'' if alike else '; vLLM wants it written out'}."
    noted = Note("inferred", "num_speculative_tokens", says, refused=not alike)
    return found[0], (noted, ADAPTS) if adapts and not alike and not case.keys.get("adaptive") else (noted,)
