"""Advice: candidates weighed against plain decoding at every load, with a verdict and a configuration for each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from augury.config.errors import ConfigError
from augury.config.resolve import resolve
from augury.config.versions import version
from augury.methods.registry import METHODS
from augury.tools.advise.candidates import AdviceInputs, Candidate, candidates
from augury.tools.advise.planners import for_planners
from augury.tools.advise.predict import Predictor
from augury.tools.advise.remarks import assumed, surer
from augury.tools.advise.target import why_not_decoding
from augury.tools.advise.verdicts import NOT, TRY, UNKNOWN, USE, JudgedMethod, against_all, no_room, verdict

SCHEDULE_SINCE = "0.24"
Ranges = list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Advice:
    """The judged methods, and the assumptions behind them."""

    question: AdviceInputs
    lines: tuple[JudgedMethod, ...] = ()  # the best first
    against: tuple[str, ...] = ()  # why speculation will not pay at all, if so
    assumed: tuple[str, ...] = ()
    surer: tuple[str, ...] = ()  # what to measure to be surer
    decoding_share: tuple[tuple[int, float], ...] = ()  # by load
    cannot: str | None = None  # why the target does not run there at all; nothing else is filled in then

    @property
    def recommended(self) -> JudgedMethod | None:
        """The best method with a verdict of use or try; None if there is none."""
        return next((line for line in self.lines if line.verdict in (USE, TRY)), None)

    def as_record(self) -> dict[str, Any]:
        """The advice as a JSON object."""
        asked, traffic, best = self.question, self.question.traffic, self.recommended
        return {
            "target": asked.facts.name,
            "cost_from": asked.cost.name,
            "engine": "augury" if asked.ours else "vllm",
            "vllm_version": None if asked.ours else asked.release_name,
            "traffic": {
                "source": traffic.source,
                "answers": traffic.requests,
                "prompt_tokens": round(traffic.prompt_tokens, 1),
                "answer_tokens": round(traffic.answer_tokens, 1),
                "kind": traffic.kind,
                "running": traffic.running,
                "prefix_cached": round(traffic.cached, 4),
                "prefix_share": None if traffic.prefix_share is None else round(traffic.prefix_share, 4),
            },
            "decoding_share": {str(load): round(share, 4) for load, share in self.decoding_share},
            "recommended": best.config if best else None,
            "method": best.candidate.method if best else None,
            "planners": for_planners(best) if best else None,
            "interval": "5th to 95th percentile",
            "cannot": self.cannot,
            "do_not": list(self.against),
            "assumed": list(self.assumed),
            "to_be_surer": list(self.surer),
            "methods": [line.as_record() for line in self.lines],
        }


def advise(asked: AdviceInputs) -> Advice:
    """Judge every candidate and rank them, best first."""
    if asked.cost.cannot and not why_not_decoding(asked.facts):
        return Advice(asked, cannot=asked.cost.cannot)
    predictor = Predictor(asked.cost, asked.traffic)
    against = against_all(asked, predictor)
    lines = [_line(asked, predictor, candidate, against) for candidate in candidates(asked)]
    order = {USE: 0, TRY: 1, NOT: 2, UNKNOWN: 3}
    lines.sort(key=lambda line: (order[line.verdict], -line.worth))
    shares = tuple((load, predictor.decoding_share(load)) for load in asked.loads)
    return Advice(asked, tuple(lines), against, assumed(asked), surer(asked, lines), shares)


def _line(asked: AdviceInputs, predictor: Predictor, candidate: Candidate, against: tuple[str, ...]) -> JudgedMethod:
    if against:  # figures next to such a reason would contradict it
        return JudgedMethod(candidate, NOT, against[0])
    if candidate.acceptance is None or candidate.drafting is None:
        return JudgedMethod(candidate, UNKNOWN, candidate.missing)
    acceptance, drafting, context = candidate.acceptance, candidate.drafting, asked.traffic.context
    loads = tuple(n for n in asked.loads if asked.cost.fits(n, context, drafting.memory_bytes(n, context)))
    too_many = tuple(n for n in asked.loads if n not in loads)
    memory = drafting.memory_bytes(max(loads or asked.loads[:1]), context)
    if why := no_room(asked, memory, loads):
        return JudgedMethod(candidate, NOT, why, memory_bytes=memory, too_many=too_many)
    ranges, alone = predictor.schedule(acceptance, drafting, max(asked.loads)), None
    if len(ranges) > 1 and not _takes_table(asked, candidate, ranges):
        said = ", ".join(f"{tokens} from {start} at once on" for start, _, tokens in ranges)
        note = f"one K for all loads, since this release takes no table by batch size with it; alone: {said}"
        candidate = replace(candidate, notes=(*candidate.notes, note))
        alone = max((predictor.best(acceptance, drafting, n) for n in loads), key=lambda at: at.decode.value)
        ranges = [(1, max(asked.loads), _one_for_all(predictor, candidate, loads))]
    by_load = tuple(predictor.at(acceptance, drafting, load, _at(ranges, load)) for load in loads)
    word, reason = verdict(candidate, by_load, alone)
    config = _config(candidate, ranges) if word in (USE, TRY) else None
    return JudgedMethod(candidate, word, reason, by_load, config, memory, too_many)


def _takes_table(asked: AdviceInputs, candidate: Candidate, ranges: Ranges) -> bool:
    """Whether K may vary by batch size: always in our engine, in vLLM since SCHEDULE_SINCE with most methods."""
    if asked.ours:
        return True
    if asked.release < version(SCHEDULE_SINCE) or METHODS[candidate.method].vllm_fixed_tokens:
        return False  # some releases take only one K with such a method, and one K is valid in all of them
    try:
        parsed = resolve(_config(candidate, ranges), as_of=asked.release_name)
    except ConfigError:  # about another key: the drafter's files are not here to be read
        return True
    refused = [note.key for note in parsed.notes if note.refused] if parsed else []
    return "num_speculative_tokens_per_batch_size" not in refused


def _at(ranges: Ranges, load: int) -> int:
    return [tokens for start, _, tokens in ranges if start <= load][-1]


def _one_for_all(predictor: Predictor, candidate: Candidate, loads: tuple[int, ...]) -> int:
    """The K with the best geometric mean speed-up over the loads, for a release that takes only one."""
    assert candidate.acceptance is not None and candidate.drafting is not None
    acceptance, drafting = candidate.acceptance, candidate.drafting

    def mean(tokens: int) -> float:
        return sum(math.log(predictor.speed(acceptance, drafting, n, tokens)) for n in loads)

    return max((0, *acceptance.lengths), key=mean)


def _config(candidate: Candidate, ranges: Ranges) -> dict[str, Any] | None:
    """The dictionary for -sc, with a table by batch size only if K varies; None if nothing is drafted at any size."""
    most = max(tokens for _, _, tokens in ranges)
    if most == 0:
        return None
    config = {**candidate.config, "num_speculative_tokens": most}
    if len(ranges) > 1:
        config["num_speculative_tokens_per_batch_size"] = [list(one) for one in ranges]
    return config
