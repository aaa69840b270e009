"""Rules for K that several methods share."""

from __future__ import annotations

from augury.methods.spec import Case, Inferred, whole


def predict_depth(case: Case) -> Inferred | None:
    """What the checkpoint was trained to predict at once."""
    depth = whole(case.stated.get("n_predict"))
    return (depth, "what the checkpoint was trained to predict at once") if depth else None


def multiple_of_depth(tokens: int, case: Case) -> str | None:
    """What is wrong with K, if anything: beyond the trained depth the head is run again as a whole."""
    return multiple_of(predict_depth(case), tokens)


def once_through(tokens: int, case: Case) -> str | None:
    """The same rule for a head that cannot be run again, so that no multiple is a way out.

    A multiple passes here, as it does in vLLM's configuration; it is refused when the head is loaded.
    """
    depth = predict_depth(case)
    if depth is None or not multiple_of(depth, tokens):
        return None
    return (
        f"must be {depth[0]} or less: the head guesses no more (vLLM asks that it be divisible by n_predict={depth[0]})"
    )


def multiple_of(depth: Inferred | None, tokens: int) -> str | None:
    """What is wrong with a K that is no multiple of a depth, where one is known."""
    if depth and tokens > depth[0] and tokens % depth[0]:
        below = tokens // depth[0] * depth[0]
        return f"must be divisible by n_predict={depth[0]} once it is larger; write {below} or {below + depth[0]}"
    return None


def all_but_first(tokens: int, parallel: bool) -> int:
    """A parallel drafter on shifted inputs: one mask row for every token but the first."""
    return tokens - 1 if parallel else 0
