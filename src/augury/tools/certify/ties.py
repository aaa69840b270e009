"""Where two servers' answers first differ, and whether rounding explains it: near-ties told from wrong text."""

from __future__ import annotations

from augury.tools.certify.report import Difference, PairScores, first_difference, gap_of
from augury.tools.shared.endpoint import END, Completion

TOLERANCE = 0.25  # nats: two steps of bfloat16 at a logit between 16 and 32


def parted(
    plain: Completion,
    fast: Completion,
    tolerance: float = TOLERANCE,
    setting: str = "greedy",
    prompt: int = 0,
    seed: int | None = None,
    greedy: bool = True,
) -> Difference | None:
    """The first token that differs, with the log-probabilities both servers gave the two tokens; None: equal answers.

    A sampled choice depends on noise that cannot be seen, so only a greedy gap is conclusive.
    """
    at = first_difference(plain.tokens, fast.tokens)
    if at is None:
        return None
    texts = [answer.tokens[at] if at < len(answer.tokens) else END for answer in (plain, fast)]
    rows = [answer.likely[at] if answer.likely and at < len(answer.likely) else {} for answer in (plain, fast)]
    runs = [PairScores(row.get(texts[0]), row.get(texts[1])) for row in rows]
    gap, back = gap_of(runs[0]), gap_of(runs[1])
    apart = max((abs(rows[0][token] - rows[1][token]) for token in rows[0] if token in rows[1]), default=None)
    known = (gap, back) if gap is not None and back is not None else (_at_most(texts, rows, apart),)
    near = greedy and all(value is not None and abs(value) <= tolerance for value in (*known, apart))
    says = f"--tolerance {tolerance:g} nats (0.25: two bfloat16 steps at a logit between 16 and 32)"
    return Difference(
        setting, prompt, seed, at, texts[0], texts[1], runs[0], runs[1], gap, apart, tolerance, says, near
    )


def _at_most(texts: list[str], rows: list[dict[str, float]], apart: float | None) -> float | None:
    """The largest gap the two tokens can have in one run if a server lists only the one it took; None if unknown.

    Under a grammar the other one is often not among the likeliest. A token's scores differ by `apart` at most between
    the runs, so its score in one is known from the other within `apart`; that must agree with its not being listed.
    """
    own = [row.get(text) for row, text in zip(rows, texts, strict=True)]
    least = [min((row[token] for token in row if token not in texts), default=None) for row in rows]
    if apart is None or None in own or None in least:
        return None
    plain, drafted, below, below_too = (value for value in (*own, *least) if value is not None)
    fits = (texts[1] in rows[0] or drafted - apart <= below) and (texts[0] in rows[1] or plain - apart <= below_too)
    return abs(plain - drafted) + apart if fits else None
