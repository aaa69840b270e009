"""Advice: candidates weighed against plain decoding at every load, with a verdict and a configuration for each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from augury.config.errors import ConfigError
from augury.config.speculative import SpeculativeConfig
from augury.config.versions import version
from augury.methods.registry import METHODS
from augury.operate.advise.candidates import Candidate, Question, candidates, family_methods
from augury.operate.advise.curve import CostCurve
from augury.operate.advise.predict import At, Predictor
from augury.operate.advise.target import why_not_decoding

PAYS = 1.03  # less is not worth a second thing to look after
USE, TRY, NOT, UNKNOWN = "use", "try", "do not", "not known"
SCHEDULE_SINCE = "0.24"
FEW_ANSWERS = 100
SMALL = 1e9  # weights below which a GPU waits for its host anyway
SHORT = 2.0  # tokens of a mean answer
MOSTLY_READING = 0.25  # share of decoding below which nothing else matters


@dataclass(frozen=True, slots=True)
class Line:
    """One method, judged."""

    candidate: Candidate
    verdict: str
    reason: str
    by_load: tuple[At, ...] = ()
    config: dict[str, Any] | None = None  # ready for -sc
    memory_bytes: float = 0.0

    @property
    def worth(self) -> float:
        """Mean of the logarithm over the loads: what lines are ranked by."""
        return sum(math.log(at.decode.value) for at in self.by_load) / max(1, len(self.by_load))

    def as_record(self) -> dict[str, Any]:
        """For programs."""
        return {
            "method": self.candidate.method, "verdict": self.verdict, "reason": self.reason,
            "acceptance_source": self.candidate.source, "acceptance_is_yours": self.candidate.yours,
            "speculative_config": self.config, "drafter_memory_bytes": round(self.memory_bytes),
            "by_requests": [at.as_record() for at in self.by_load], "notes": list(self.candidate.notes),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Advice:
    """Everything that is to be said."""

    question: Question
    lines: tuple[Line, ...]  # the best first
    against: tuple[str, ...]  # why speculation will not pay at all, if so
    assumed: tuple[str, ...]
    surer: tuple[str, ...]  # what to measure
    decoding_share: tuple[tuple[int, float], ...]  # by load

    @property
    def recommended(self) -> Line | None:
        """The first line that is advised."""
        return next((line for line in self.lines if line.verdict in (USE, TRY)), None)

    def as_record(self) -> dict[str, Any]:
        """For programs."""
        asked, traffic, best = self.question, self.question.traffic, self.recommended
        return {
            "target": asked.facts.name, "cost_from": asked.cost.name, "vllm_version": ".".join(map(str, asked.release)),
            "traffic": {
                "source": traffic.source, "answers": traffic.requests, "prompt_tokens": round(traffic.prompt_tokens, 1),
                "answer_tokens": round(traffic.answer_tokens, 1), "kind": traffic.kind,
                "running": traffic.running, "prefix_cached": round(traffic.cached, 4),
            },
            "decoding_share": {str(load): round(share, 4) for load, share in self.decoding_share},
            "recommended": best.config if best else None, "method": best.candidate.method if best else None,
            "interval": "5th to 95th percentile", "do_not": list(self.against), "assumed": list(self.assumed),
            "to_be_surer": list(self.surer), "methods": [line.as_record() for line in self.lines],
        }  # fmt: skip


def advise(asked: Question) -> Advice:
    """Weigh every candidate."""
    predictor = Predictor(asked.cost, asked.traffic)
    against = _against(asked, predictor)
    lines = [_line(asked, predictor, candidate, against) for candidate in candidates(asked)]
    order = {USE: 0, TRY: 1, NOT: 2, UNKNOWN: 3}
    lines.sort(key=lambda line: (order[line.verdict], -line.worth))
    shares = tuple((load, predictor.decoding_share(load)) for load in asked.loads)
    return Advice(asked, tuple(lines), against, _assumed(asked), _surer(asked, lines), shares)


def _against(asked: Question, predictor: Predictor) -> tuple[str, ...]:
    """Reasons that hold for every method."""
    found = []
    if why := why_not_decoding(asked.facts):
        found.append(why)
    if asked.shape is not None and not asked.measured and asked.shape.parameters < SMALL:
        found.append(
            f"{asked.shape.parameters / 1e9:.2f}B weights: on a GPU such a step is mostly the host's, and drafts make "
            "that longer"
        )
    if asked.traffic.answer_tokens <= SHORT:
        found.append(
            f"answers of {asked.traffic.answer_tokens:.1f} tokens: the first comes from reading the prompt, and "
            "nothing is left to decode"
        )
    elif all(predictor.decoding_share(load) < MOSTLY_READING for load in asked.loads):
        share = max(predictor.decoding_share(load) for load in asked.loads)
        found.append(
            f"decoding is {share:.0%} of the time at most, the rest reads prompts; prefix caching and chunked prefill "
            "do more"
        )
    return tuple(found)


def _line(asked: Question, predictor: Predictor, candidate: Candidate, against: tuple[str, ...]) -> Line:
    if candidate.acceptance is None or candidate.drafting is None:
        return Line(candidate, UNKNOWN, candidate.missing)
    acceptance, drafting = candidate.acceptance, candidate.drafting
    ranges = predictor.schedule(acceptance, drafting, max(asked.loads))
    if len(ranges) > 1 and not _takes_table(asked, candidate, ranges):
        alone = ", ".join(f"{tokens} from {start} at once on" for start, _, tokens in ranges)
        note = f"one K for all loads, since this release takes no table by batch size with it; alone: {alone}"
        candidate = replace(candidate, notes=(*candidate.notes, note))
        ranges = [(1, max(asked.loads), _one_for_all(asked, predictor, candidate))]
    by_load = tuple(predictor.at(acceptance, drafting, load, _at(ranges, load)) for load in asked.loads)
    memory = drafting.memory_bytes(max(asked.loads), asked.traffic.context)
    config = _config(candidate, ranges)
    verdict, reason = _verdict(asked, candidate, by_load, memory)
    if against:
        verdict, reason = NOT, against[0]
    return Line(candidate, verdict, reason, by_load, config if verdict in (USE, TRY) else None, memory)


def _takes_table(asked: Question, candidate: Candidate, ranges: list[tuple[int, int, int]]) -> bool:
    """Whether K may differ by batch size: always in our engine, in vLLM from a release on and not with every method."""
    if asked.measured:
        return True
    if asked.release < version(SCHEDULE_SINCE):
        return False
    try:
        parsed = SpeculativeConfig.parse(_config(candidate, ranges), as_of=".".join(map(str, asked.release)))
    except ConfigError:  # of another key: a drafter that is not here to be read
        return True
    refused = [note.key for note in parsed.notes if note.refused] if parsed else []
    return "num_speculative_tokens_per_batch_size" not in refused


def _at(ranges: list[tuple[int, int, int]], load: int) -> int:
    return [tokens for start, _, tokens in ranges if start <= load][-1]


def _one_for_all(asked: Question, predictor: Predictor, candidate: Candidate) -> int:
    """The K with the best mean over the loads, where a release knows only one."""
    assert candidate.acceptance is not None and candidate.drafting is not None
    acceptance, drafting = candidate.acceptance, candidate.drafting

    def mean(tokens: int) -> float:
        return sum(math.log(predictor.at(acceptance, drafting, n, tokens).decode.value) for n in asked.loads)

    return max((0, *acceptance.lengths), key=mean)


def _config(candidate: Candidate, ranges: list[tuple[int, int, int]]) -> dict[str, Any] | None:
    """The dictionary for -sc; a table by batch size only where one K is not best for all."""
    most = max(tokens for _, _, tokens in ranges)
    if most == 0:
        return None
    config = {**candidate.config, "num_speculative_tokens": most}
    if len(ranges) > 1:
        config["num_speculative_tokens_per_batch_size"] = [list(one) for one in ranges]
    return config


def _verdict(asked: Question, candidate: Candidate, by_load: tuple[At, ...], memory: float) -> tuple[str, str]:
    if asked.max_memory is not None and memory > asked.max_memory:
        return NOT, f"needs {memory / 1e9:.1f} GB beside the target, --max-memory leaves {asked.max_memory / 1e9:.1f}"
    if memory > asked.cost.free_bytes:
        return (
            NOT,
            f"needs {memory / 1e9:.1f} GB beside the target, the device has {asked.cost.free_bytes / 1e9:.1f} left",
        )
    paying = [at for at in by_load if at.tokens and at.decode.value >= PAYS]
    if not paying:
        best = max(by_load, key=lambda at: at.decode.value)
        return NOT, f"expected at most {best.decode.value:.2f} times plain decoding, at {best.requests} at once"
    where = _where([at.requests for at in paying], [at.requests for at in by_load])
    if losing := [at.requests for at in by_load if at.tokens and at.decode.value < 1]:
        where += f", slower than plain decoding at {', '.join(map(str, losing))}"
    sure = all(at.decode.low >= 1 for at in paying)
    doubt = "" if sure else "; the interval reaches below 1"
    if not candidate.yours:
        doubt += "; others' acceptance, so try it and measure"
    return (USE if sure and candidate.yours else TRY), f"pays{where}{doubt}"


def _where(paying: list[int], loads: list[int]) -> str:
    """The loads it pays at, in words; nothing where it is all of them."""
    if paying == loads:
        return ""
    if paying == loads[: len(paying)]:
        return f" up to {paying[-1]} at once"
    return f" only at {', '.join(map(str, paying))} at once"


def _assumed(asked: Question) -> tuple[str, ...]:
    traffic = asked.traffic
    found = [f"costs: {asked.cost.name}"]
    if asked.facts.directory is None and asked.shape is not None:
        held = asked.shape.stored_bytes / 1e9
        found.append(f"the target's shape is the table's for {asked.facts.name}: {held:.1f} GB of weights")
    if not traffic.requests:
        found.append(
            f"traffic: nobody's; prompts of {traffic.prompt_tokens:.0f} tokens, answers of {traffic.answer_tokens:.0f}"
        )
    else:
        found.append(
            f"traffic: {traffic.source}, {traffic.requests} answers, {traffic.kind}; prompts of "
            f"{traffic.prompt_tokens:.0f} tokens, {traffic.cached:.0%} of them from the prefix cache, answers of "
            f"{traffic.answer_tokens:.0f}"
        )
    if traffic.running is not None:
        found.append(f"the server runs {traffic.running:.0f} at once now; read the column nearest to your busy hours")
    if not asked.measured:
        found.append(
            "engine: vLLM with CUDA graphs up to 512 rows; K + 1 rows times requests beyond that run much slower"
        )
    if isinstance(asked.cost, CostCurve) and asked.loads[-1] > asked.cost.axes[1][-1]:
        most = asked.cost.axes[1][-1]
        found.append(
            f"the curve ends at {most} at once: beyond that only rows are counted; measure with a larger --batch"
        )
    if not family_methods(asked.facts) and not why_not_decoding(asked.facts):
        found.append(
            f"no published head is known for model type {asked.facts.kind!r}: model-free, or a drafter of your own"
        )
    found.append("all requests of a load decode at once, none waits; drafts are chains, rejection is lossless")
    return tuple(found)


def _surer(asked: Question, lines: list[Line]) -> tuple[str, ...]:
    found = []
    if asked.recorded is None:
        free = [line for line in lines if line.by_load and METHODS[line.candidate.method].weights == "none"]
        wide = ", ".join(
            f"{line.candidate.method} {line.by_load[0].decode.low:.1f} to {line.by_load[0].decode.high:.1f}"
            for line in free if not line.candidate.yours and line.by_load[0].tokens
        )  # fmt: skip
        told = f" (now a guess: {wide})" if wide else ""
        found.append(f"give --trace with a day's requests and answers: n-gram and suffix are then replayed{told}")
    elif asked.traffic.requests < FEW_ANSWERS:
        found.append(f"{asked.traffic.requests} answers are few: the intervals shrink with the root of their number")
    if not asked.measured:
        found.append(
            "the roofline knows no engine's mood: compare one step time of your server with plain_step_ms in --json"
        )
    guessed = [line.candidate.method for line in lines if not line.candidate.yours and line.verdict != UNKNOWN]
    if guessed:
        found.append(f"acceptance of {', '.join(guessed)} is others': measure yours, then give --profile")
    return tuple(found)
