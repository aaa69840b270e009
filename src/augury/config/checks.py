"""Checks on the two config.json files alone: sizes that must agree, whatever the method."""

from __future__ import annotations

from augury.config.errors import problem
from augury.config.vllm_class import unloadable
from augury.methods.notes import Note
from augury.methods.recognise import recognise
from augury.methods.registry import METHODS, ORDINARY
from augury.methods.spec import Case, Method


def check_against(card: Method, case: Case, as_of: str | None) -> tuple[Note, ...]:
    """Check everything that a target and a drafter must agree on, as far as both are known; returns notes."""
    if card.has_weights:
        _check_parallel(card, case)
        _check_context(card.own_context or as_of is not None, case)
    notes = card.check(case)
    _check_words(case)
    if as_of is not None and any(unloadable(card, case, as_of)):
        return notes  # the class that vLLM lacks is reported instead
    return (*notes, *_compare_kinds(card, case))


def _check_parallel(card: Method, case: Case) -> None:
    size, whole = case.keys.get("draft_tensor_parallel_size"), case.target.tensor_parallel_size
    if size is not None and whole is not None and size not in (1, whole):
        choices = f"1 or {whole}" if whole > 1 else "1"
        says = f"cannot be another value than 1 or the target's; write {choices}"
        raise problem("draft_tensor_parallel_size", size, says)
    heads = case.draft.heads if case.draft else None
    taken = size or (whole if card.sharded or card.continues_target else None)  # left out, it is the target's
    if heads and taken and heads % taken:
        raise problem("draft_tensor_parallel_size", taken, f"does not divide the drafter's {heads} heads; write 1")


def _check_context(own: bool, case: Case) -> None:
    """Refuse a max_model_len above the target's limit or, if `own`, above that of the drafter's checkpoint."""
    length, target = case.keys.get("max_model_len"), case.target
    if length is None:
        return
    limits = [("the target's", target.max_model_len or (target.facts.context if target.facts else None))]
    if case.draft is not None and own:
        limits.append(("the drafter's", case.draft.context))
    for whose, limit in limits:
        if limit is not None and length > limit:
            raise problem("max_model_len", length, f"cannot be larger than {whose} {limit}; write {limit} or less")


def _check_words(case: Case) -> None:
    draft, words = case.draft, case.target.facts.vocab_size if case.target.facts else None
    small = draft.number("draft_vocab_size") if draft else None
    if draft is not None and small is not None and words and small > words:
        raise problem("model", draft.name, f"drafts from {small} tokens, more than the target's {words}")


def _compare_kinds(card: Method, case: Case) -> tuple[Note, ...]:
    told = recognise(case.draft.raw, case.target) if case.draft else None
    if told is None or told.method == card.name:
        return ()
    whole = card is ORDINARY and METHODS[told.method].weights == "target"
    costs = "The whole model would draft, at its full price."
    wrong = "A head run by the wrong method drafts, and almost nothing is accepted."
    says = f"you asked for {card.name!r}, but {told.why}: it looks like {told.method!r}. {costs if whole else wrong}"
    return (Note("warning", "method", says),)
