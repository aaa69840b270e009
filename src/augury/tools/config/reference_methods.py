"""The table at the top of docs/methods.md: what each method can do, read off its card, its keys and its drafter."""

from __future__ import annotations

from augury.config.resolve import resolve
from augury.methods.registry import METHODS, drafter_class
from augury.methods.spec import Method

COLUMNS = ("method", "weights", "chain", "tree", "sampled drafts", "parallel", "CPU", "GPU graph")
WEIGHTS = {
    "none": "none",
    "draft": "its own",
    "target": "the target's",
    "either": "its own",
    "import path": "your class",
}
YOURS = "depends on it"  # what a user's class can do depends on the class


def methods_table() -> str:
    """A Markdown table with a row for every method."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(card))} |" for card in METHODS.values())])


def _cells(card: Method) -> list[str]:
    drafter = drafter_class(card)
    name, chain = f"`{card.name}`", "drafts nothing" if hasattr(drafter, "saved") else "yes"
    captured = "no" if drafter.on_host else "yes"  # type: ignore[attr-defined]
    if card.weights == "import path":
        return [name, WEIGHTS[card.weights], "yes", YOURS, YOURS, YOURS, "yes", YOURS]
    sampled = "yes" if "draft_sample_method" in card.keys else "no"
    return [name, WEIGHTS[card.weights], chain, _tree(card), sampled, _parallel(card), "yes", captured]


def _tree(card: Method) -> str:
    if "tree" not in card.keys:
        return "no"
    return "yes" if "speculative_token_tree" in card.keys else "grown only"


def _parallel(card: Method) -> str:
    """Whether all tokens of a draft can come from one forward pass over mask tokens."""
    if "parallel_drafting" not in card.keys:
        return "no"
    plain = resolve({"method": card.name, "model": "a/drafter", "num_speculative_tokens": 2})
    return "always" if plain and plain.parallel_drafting else "on request"
