"""Rules for K that several methods share."""

from __future__ import annotations

from augury.methods.spec import Facts, Inferred, whole


def predict_depth(facts: Facts) -> Inferred | None:
    """What the checkpoint was trained to predict at once."""
    depth = whole(facts.draft.get("n_predict"))
    return (depth, "what the checkpoint was trained to predict at once") if depth else None


def multiple_of_depth(tokens: int, facts: Facts) -> str | None:
    """Beyond the trained depth the head is run again as a whole."""
    known = predict_depth(facts)
    if known and tokens > known[0] and tokens % known[0]:
        below = tokens // known[0] * known[0]
        return f"must be divisible by n_predict={known[0]} once it is larger; write {below} or {below + known[0]}"
    return None


def all_but_first(tokens: int, parallel: bool) -> int:
    """A parallel drafter on shifted inputs: one mask row for every token but the first."""
    return tokens - 1 if parallel else 0
