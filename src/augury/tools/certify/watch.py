"""Capture the scores behind chosen tokens of chosen requests while an engine decodes as usual."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from augury.engine.engine import Engine
from augury.engine.judge import Judge
from augury.engine.rows import PassLayout
from augury.kernels.verify import NEVER, edited, lowest_allowed, ordered
from augury.tools.certify.report import PairScores
from augury.verify.noise import TARGET, gumbel
from augury.verify.sampling import Draws, Outcome, SlotSampling

# How far rounding may move a logit, in steps of the number format at the largest logit of a row. All three add up
# thousands of terms in float32; the half formats round a few times per layer on top.
STEPS = {torch.float32: 64, torch.float16: 4, torch.bfloat16: 2}


class SeenToken(NamedTuple):
    """A token that was emitted, with the logits and scores behind it."""

    token: int  # its id
    logits: Tensor  # float32 [V], raw
    scores: Tensor  # float32 [V]: `coupled` chooses the largest; -inf where filtered out
    temperature: float  # 1 where greedy

    def of(self, plain: int, drafted: int) -> PairScores:
        """The scores of two tokens."""
        return PairScores(float(self.scores[plain]), float(self.scores[drafted]))


@contextmanager
def watching(engine: Engine, wanted: Mapping[int, int]) -> Iterator[dict[int, SeenToken]]:
    """A table by request seed, filled in the block: the token emitted at each wanted seed's absolute position.

    Seeds must be unique among the running requests. CUDA graphs are not used meanwhile.
    """
    seen: dict[int, SeenToken] = {}
    runner = engine.runner
    real, captured = runner.judge, runner.captured

    def judge(logits: Tensor, layout: PassLayout, sampling: SlotSampling, slots: Tensor) -> Outcome:
        outcome = real(logits, layout, sampling, slots)
        scores: Tensor | None = None
        for group, slot in enumerate(slots.tolist()):
            seed = int(sampling.seed[slot])
            number = wanted[seed] - int(layout.ends[group]) if seed in wanted else -1
            if 0 <= number < int(outcome.emitted_count[group]):
                line = _line(layout, outcome, group, number)
                scores = _scores(logits, layout.draws, sampling) if scores is None else scores
                heat = float(sampling.temperature[slot]) or 1.0
                token = int(outcome.emitted[group, number])
                seen[seed] = SeenToken(token, logits[line].float().cpu().clone(), scores[line].cpu().clone(), heat)
        return outcome

    runner.judge, runner.captured = Judge(judge), None
    try:
        yield seen
    finally:
        runner.judge, runner.captured = real, captured


def _line(layout: PassLayout, outcome: Outcome, group: int, number: int) -> int:
    """The row of logits from which a group's emitted token of that number came."""
    first = int(layout.first[group])
    return first if number == 0 else first + 1 + int(outcome.path[group, number - 1])


def _scores(logits: Tensor, draws: Draws, sampling: SlotSampling) -> Tensor:
    """The scores that the coupled rule takes the largest of, by reference kernels; greedy rows have no noise."""
    scores = ordered(logits if draws.plain else edited(logits, draws, sampling))
    heat = sampling.temperature[draws.slots][:, None]
    sampled = heat > 0
    warm = scores / torch.where(sampled, heat, 1.0)
    z = warm - warm.amax(1, keepdim=True)
    noise = gumbel(sampling.seed[draws.slots], draws.positions, TARGET, scores.shape[1])
    raced = torch.where(z >= lowest_allowed(z, draws.slots, sampling), warm + noise, NEVER)
    return torch.where(sampled, raced, scores)


class Tie(NamedTuple):
    """Two runs compared at the first token that differs."""

    gap: float  # plain run: its token's score minus the other's
    apart: float  # the largest difference between the runs' scores
    bound: float
    bound_is: str
    near: bool


def tie(plain: SeenToken, drafted: SeenToken, tokens: tuple[int, int], dtype: torch.dtype) -> Tie:
    """Whether rounding explains that two runs of one request took different tokens.

    The runs must have computed different scores, but no more different than rounding makes them, and the choice must
    follow: two scores that lie a gap apart change order only if they move by half of it. A token that a filter such
    as top-p kept in only one run has no score in the other; then the tie is at the filter's edge.
    """
    both = torch.isfinite(plain.scores) & torch.isfinite(drafted.scores)
    apart = float((plain.scores - drafted.scores)[both].abs().amax()) if bool(both.any()) else math.inf
    largest = float(plain.logits.abs().nan_to_num(0, 0, 0).amax())
    steps = STEPS.get(dtype, STEPS[torch.float32])
    bound = steps * torch.finfo(dtype).eps * largest / plain.temperature
    name = str(dtype).removeprefix("torch.")
    says = f"{steps} {name} steps at the row's largest logit {largest:.3g}, over temperature {plain.temperature:g}"
    first, other = plain.of(*tokens), drafted.of(*tokens)
    gap = _minus(first.plain, first.drafted)
    cut = math.isinf(gap) or math.isinf(_minus(other.drafted, other.plain))
    return Tie(gap, apart, bound, says, 0 < apart <= bound and (cut or gap <= 2 * apart))


def _minus(a: float | None, b: float | None) -> float:
    return math.inf if a is None or b is None or math.isinf(a) or math.isinf(b) else a - b
