"""The best row of a replay in the forms that aiconfigurator and Dynamo's planner read."""

from __future__ import annotations

from itertools import pairwise

from augury.tools.replay.figures import Summary
from augury.tools.shared.planner_forms import Expected, aiconfigurator_words, dynamo_file


def expected_of(summary: Summary) -> Expected | None:
    """Accepted tokens per step over all steps; a step without a draft counts as one whose first token was rejected."""
    if not summary.total.drafts:
        return None
    reached = [summary.total.steps, *summary.accepted_at]
    rates = [round(now / before, 3) if before else 0.0 for before, now in pairwise(reached)]
    tokens = max(summary.tokens, len(summary.accepted_at))
    return Expected(tokens, summary.total.accepted / summary.total.steps, [*rates, *[0.0] * (tokens - len(rates))])


def for_planner(summary: Summary, form: str) -> str:
    """Options for aiconfigurator, which also needs the model and the GPUs, or a file for Dynamo's planner."""
    expected = expected_of(summary)
    if form == "aiconfigurator":
        return aiconfigurator_words(expected) + "\n"
    remark = f"{summary.name}: {summary.total.tokens_per_step:.2f} tokens a step on {summary.total.responses} answers."
    return dynamo_file({"backend": "vllm", "mode": "agg"}, expected, [remark])
