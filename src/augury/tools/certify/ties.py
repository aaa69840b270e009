"""Where two servers' answers part, and whether rounding explains it: near-ties told from wrong text."""

from __future__ import annotations

from augury.tools.certify.report import Difference, Scores, first_difference, gap_of
from augury.tools.shared.endpoint import END, Answer

TOLERANCE = 0.25  # nats: two steps of bfloat16 at a logit between 16 and 32


def parted(
    plain: Answer,
    fast: Answer,
    tolerance: float = TOLERANCE,
    setting: str = "greedy",
    prompt: int = 0,
    seed: int | None = None,
    greedy: bool = True,
) -> Difference | None:
    """The first token that differs, with the log-probabilities both servers gave the two tokens; None: equal answers.

    Noise that cannot be seen takes part in a sampled choice, so only a greedy gap tells.
    """
    at = first_difference(plain.tokens, fast.tokens)
    if at is None:
        return None
    texts = [answer.tokens[at] if at < len(answer.tokens) else END for answer in (plain, fast)]
    rows = [answer.likely[at] if answer.likely and at < len(answer.likely) else {} for answer in (plain, fast)]
    runs = [Scores(row.get(texts[0]), row.get(texts[1])) for row in rows]
    gap, back = gap_of(runs[0]), gap_of(runs[1])
    apart = max((abs(rows[0][token] - rows[1][token]) for token in rows[0] if token in rows[1]), default=None)
    near = greedy and all(value is not None and abs(value) <= tolerance for value in (gap, back, apart))
    says = f"--tolerance {tolerance:g} nats (0.25: two bfloat16 steps at a logit between 16 and 32)"
    return Difference(
        setting, prompt, seed, at, texts[0], texts[1], runs[0], runs[1], gap, apart, tolerance, says, near
    )
