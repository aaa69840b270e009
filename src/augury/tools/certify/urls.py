"""Two servers, one that speculates and one that does not, compared through their OpenAI API, without torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from augury.tools.certify.places import ALPHA, LEAST_SAMPLES, TestedPlace, beginnings, judge
from augury.tools.certify.report import ComparisonReport, Equality, SuiteProgress, Unwatched
from augury.tools.certify.statistics import against_samples
from augury.tools.certify.ties import TOLERANCE, parted
from augury.tools.shared.endpoint import Completion, Endpoint

DEPTH = 5  # tokens of a sampled answer
LAW_PROMPTS = 2
LIKELY = 5  # log-probabilities asked for; OpenAI's maximum
Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class UrlPlan:
    """What to compare, and how much of it."""

    prompts: Sequence[str]
    max_tokens: int = 64
    temperatures: Sequence[float] = (0.0, 1.0)
    seeds: int = 2
    samples: int = 1000
    in_flight: int = 8
    same_seed: bool = False  # whether sampled answers must be equal too, as between two Augury servers
    logprobs: bool = True
    tolerance: float = TOLERANCE
    alpha: float = ALPHA


class _Ask(NamedTuple):
    prompt: int
    seed: int
    temperature: float
    max_tokens: int


def certify_urls(
    fast: Endpoint, plain: Endpoint, plan: UrlPlan, progress: SuiteProgress | None = None
) -> ComparisonReport:
    """Compare the server that speculates with the baseline."""
    begun = time.perf_counter()
    return _Comparison(fast, plain, plan, progress or Unwatched()).run(begun)


@dataclass(slots=True)
class _Comparison:
    fast: Endpoint
    plain: Endpoint
    plan: UrlPlan
    progress: SuiteProgress

    def run(self, begun: float) -> ComparisonReport:
        before = self.fast.drafts()
        report = ComparisonReport(f"{self.fast.base} against the baseline {self.plain.base}", self.conditions())
        heats = sorted(set(self.plan.temperatures))
        report.equalities = [self.equality(heat) for heat in heats if heat == 0 or self.plan.same_seed]
        places = [place for heat in heats if heat > 0 for place in self.places(heat)]
        if any(heat > 0 for heat in heats):
            report.law = judge(places, self.plan.alpha)
        after = self.fast.drafts()
        report.drafted = None if before is None or after is None else after > before
        report.notes = self.notes(report, len(places))
        report.seconds = time.perf_counter() - begun
        return report

    def equality(self, heat: float) -> Equality:
        """Compare both servers' answers for every prompt, and for every seed if the temperature is above 0."""
        seeds = self.plan.seeds if heat > 0 else 1
        asks = [_Ask(p, s, heat, self.plan.max_tokens) for p in range(len(self.plan.prompts)) for s in range(seeds)]
        name = "greedy" if heat == 0 else f"T={heat:g}, same seeds"
        theirs, ours = (self.ask(at, asks, f"{name}: {at.flag}") for at in (self.plain, self.fast))
        if any((a.likely is None) != (b.likely is None) for a, b in zip(theirs, ours, strict=True)):
            theirs, ours = [a.joined() for a in theirs], [a.joined() for a in ours]  # one server lists no tokens
        bound = self.plan.tolerance
        found = [
            difference
            for ask, a, b in zip(asks, theirs, ours, strict=True)
            if (difference := parted(a, b, bound, name, ask.prompt, ask.seed, heat == 0)) is not None
        ]
        return Equality(name, len(asks), sum(len(a.tokens) for a in theirs), found)

    def places(self, heat: float) -> list[TestedPlace]:
        """Compare sampled answers of both servers with each other, after their most frequent beginnings."""
        found: list[TestedPlace] = []
        for prompt in range(min(LAW_PROMPTS, len(self.plan.prompts))):
            given: list[list[Completion]] = []
            for number, at in enumerate((self.fast, self.plain)):
                # Each server gets its own seeds: with equal noise the two samples would not be independent.
                turn = sorted(set(self.plan.temperatures)).index(heat) * LAW_PROMPTS + prompt
                first = 1 + (2 * turn + number) * self.plan.samples
                depth = min(DEPTH, self.plan.max_tokens)
                asks = [_Ask(prompt, first + i, heat, depth) for i in range(self.plan.samples)]
                answers = self.ask(at, asks, f"T={heat:g}, prompt {prompt + 1}: {at.flag}")
                given.append(answers)
            if any(answer.likely is None for answers in given for answer in answers):
                given = [[answer.joined() for answer in answers] for answers in given]  # one server lists no tokens
            texts = [[answer.tokens for answer in answers] for answers in given]
            found += _compared(f"T={heat:g}", prompt, *texts)
        return found

    def ask(self, at: Endpoint, asks: Sequence[_Ask], what: str) -> list[Completion]:
        """Send the requests, several at a time, and return the answers in order."""
        self.progress.begin(what, len(asks))

        def one(ask: _Ask) -> Completion:
            told: dict[str, Any] = {"logprobs": LIKELY} if self.plan.logprobs else {}
            answer = at.complete(
                self.plan.prompts[ask.prompt],
                max_tokens=ask.max_tokens,
                temperature=ask.temperature,
                top_p=1.0,
                seed=ask.seed,
                **told,
            )
            self.progress.step()
            return answer

        return together(one, asks, self.plan.in_flight)

    def notes(self, report: ComparisonReport, places: int) -> list[str]:
        """Remarks for the reader of the report."""
        found = []
        if report.drafted is None:
            found.append(
                "The server's metrics do not say whether it drafted anything; without drafts nothing is shown."
            )
        elif not report.drafted:
            found.append("The server drafted nothing meanwhile, so nothing was certified.")
        if not self.plan.same_seed:
            found.append("Sampled answers were not compared token for token; between Augury servers use --same-seed.")
        if report.law is not None and not places:
            found.append("Too few samples for a test of the law; raise --samples.")
        return found

    def conditions(self) -> dict[str, Any]:
        """What the figures depend on."""
        plan = self.plan
        return {
            "url": self.fast.base,
            "model": self.fast.model,
            "baseline_url": self.plain.base,
            "baseline_model": self.plain.model,
            "prompts": len(plan.prompts),
            "prompts_sampled": min(LAW_PROMPTS, len(plan.prompts)),
            "max_tokens": plan.max_tokens,
            "temperatures": list(plan.temperatures),
            "samples": plan.samples,
            "sampled_tokens_each": min(DEPTH, plan.max_tokens),
            "requests_in_flight": plan.in_flight,
            "same_seed": plan.same_seed,
            "logprobs": plan.logprobs,
            "tolerance": plan.tolerance,
        }


def _compared(setting: str, prompt: int, ours: list[Any], theirs: list[Any]) -> list[TestedPlace]:
    """Compare both samples after the beginnings most frequent in the two together."""
    found = []
    for beginning, _ in beginnings([*ours, *theirs], DEPTH):
        counts = [_behind(texts, beginning) for texts in (ours, theirs)]
        if min(sum(some.values()) for some in counts) < LEAST_SAMPLES:
            continue  # the smaller sample decides how good the chi-square approximation is
        cells, fit = against_samples(*counts)
        found.append(TestedPlace(setting, prompt, "".join(map(str, beginning)), len(beginning), cells, fit))
    return found


def _behind(texts: list[Any], beginning: tuple[Any, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    length = len(beginning)
    for text in texts:
        if len(text) > length and tuple(text[:length]) == beginning:
            counts[text[length]] = counts.get(text[length], 0) + 1
    return counts


def together(work: Callable[[Given], Made], every: Sequence[Given], workers: int) -> list[Made]:
    """Map with threads; the first error is raised, and work that has not begun is cancelled."""
    with ThreadPoolExecutor(max_workers=workers) as pool:
        waiting = [pool.submit(work, one) for one in every]
        try:
            return [done.result() for done in waiting]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
