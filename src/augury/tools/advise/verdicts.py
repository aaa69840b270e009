"""Verdicts: whether a method pays and why, or why it cannot be judged, and what speaks against all methods."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from augury.methods.registry import METHODS
from augury.tools.advise.candidates import AdviceInputs, Candidate
from augury.tools.advise.predict import At, Predictor
from augury.tools.advise.target import why_not_decoding

USE, TRY, NOT, UNKNOWN = "use", "try", "do not", "not known"
PAYS = 1.03  # a smaller speed-up is not worth operating a drafter
SMALL = 1e9  # weights below which a GPU waits for its host anyway
SHORT = 2.0  # mean tokens per answer, up to which nothing is left to decode
MOSTLY_READING = 0.25  # share of decoding below which nothing else matters


@dataclass(frozen=True, slots=True)
class JudgedMethod:
    """One method with its verdict."""

    candidate: Candidate
    verdict: str
    reason: str
    by_load: tuple[At, ...] = ()  # of the loads that fit
    config: dict[str, Any] | None = None  # ready for -sc
    memory_bytes: float = 0.0
    too_many: tuple[int, ...] = ()  # loads whose caches do not fit in memory with the weights and the drafter

    @property
    def worth(self) -> float:
        """Mean log speed-up over the loads, by which methods are ranked."""
        return sum(math.log(at.decode.value) for at in self.by_load) / max(1, len(self.by_load))

    def as_record(self) -> dict[str, Any]:
        """The judged method as a JSON object."""
        loads = [{**at.as_record(), "fits": True} for at in self.by_load]
        loads += [{"requests": requests, "fits": False} for requests in self.too_many]
        return {
            "method": self.candidate.method,
            "verdict": self.verdict,
            "reason": self.reason,
            "acceptance_source": self.candidate.source,
            "acceptance_is_yours": self.candidate.yours,
            "speculative_config": self.config,
            "drafter_memory_bytes": round(self.memory_bytes),
            "by_requests": sorted(loads, key=lambda one: int(one["requests"])),
            "notes": list(self.candidate.notes),
        }


def against_all(asked: AdviceInputs, predictor: Predictor) -> tuple[str, ...]:
    """Reasons against speculation that hold for every method."""
    found = []
    if why := why_not_decoding(asked.facts):
        found.append(why)
    if asked.shape is not None and not asked.measured and asked.shape.parameters < SMALL:
        found.append(
            f"{asked.shape.parameters / 1e9:.2f}B weights: on a GPU such a step is mostly host time, which the "
            "roofline does not model and drafting adds to"
        )
    if asked.traffic.answer_tokens <= SHORT:
        found.append(
            f"answers of {asked.traffic.answer_tokens:.1f} tokens: the first comes from reading the prompt, and "
            "nothing is left to decode"
        )
    else:
        found += _wrong_lever(asked, predictor)
    return tuple(found)


def _wrong_lever(asked: AdviceInputs, predictor: Predictor) -> list[str]:
    """A reason if prefill dominates: even drafts that cost nothing and are always accepted would hardly help."""
    shares = {load: predictor.decoding_share(load) for load in asked.loads}
    if sum(shares.values()) / len(shares) >= MOSTLY_READING:
        return []
    most = ", ".join(f"{1 / (1 - share):.2f} times at {load} at once" for load, share in list(shares.items())[:2])
    traffic, share = asked.traffic, max(shares.values())
    return [
        f"the wrong lever: with {traffic.prompt_tokens:,.0f} tokens in and {traffic.answer_tokens:,.0f} out decoding "
        f"is {share:.0%} of the time at most, the rest reads prompts; if decoding took no time at all, requests would "
        f"be faster {most}. Prefix caching, chunked prefill and shorter prompts do more"
    ]


def no_room(asked: AdviceInputs, memory: float, loads: tuple[int, ...]) -> str | None:
    """Why the memory does not suffice for a drafter of this size at these loads; None if it does."""
    if asked.max_memory is not None and memory > asked.max_memory:
        return f"needs {memory / 1e9:.1f} GB beside the target, --max-memory leaves {asked.max_memory / 1e9:.1f}"
    left = asked.cost.free_bytes
    if memory > left:
        return f"needs {memory / 1e9:.1f} GB beside the target, the device has {left / 1e9:.1f} left"
    if not loads:
        return (
            f"the caches of {asked.loads[0]} at once with {asked.traffic.context:.0f} tokens each do not fit into the "
            f"{left / 1e9:.1f} GB beside the weights"
        )
    return None


def verdict(candidate: Candidate, by_load: tuple[At, ...], alone: At | None) -> tuple[str, str]:
    """The verdict and its reason; `alone` is the prediction at the best load alone, if one K must serve them all."""
    if not candidate.exists:
        return UNKNOWN, "no drafter is known for a target of this shape; train one, or name yours with --drafter"
    if not candidate.yours and METHODS[candidate.method].weights == "none":
        return UNKNOWN, "depends on your text, from no gain to a large one; give --trace"
    decoding = [at for at in by_load if at.tokens and at.decode.value >= PAYS]
    paying = [at for at in decoding if at.whole.value >= PAYS]
    if decoding and not paying:
        best = max(decoding, key=lambda at: at.whole.value)
        return NOT, (
            f"the wrong lever: decoding would be {best.decode.value:.2f} times as fast at {best.requests} at once, and "
            f"requests with their prompts {best.whole.value:.2f} times; prefix caching and chunked prefill do more"
        )
    if not paying:
        return NOT, _why_not(by_load, alone)
    where = _where([at.requests for at in paying], [at.requests for at in by_load])
    if losing := [at.requests for at in by_load if at.tokens and at.decode.value < 1]:
        where += f", slower than plain decoding at {', '.join(map(str, losing))}"
    sure = all(at.decode.low >= 1 for at in paying)
    doubt = "" if sure else "; the interval reaches below 1"
    if not candidate.yours:
        doubt += "; the acceptance is not known from your traffic, so try it and measure"
    return (USE if sure and candidate.yours else TRY), f"pays{where}{doubt}"


def _why_not(by_load: tuple[At, ...], alone: At | None) -> str:
    if alone is not None and alone.decode.value >= PAYS:
        return (
            f"one K must serve all these loads, and none pays over all of them; at {alone.requests} at once alone "
            f"K={alone.tokens} would give {alone.decode.value:.2f}: name the loads you have with --concurrency"
        )
    if not any(at.tokens for at in by_load):
        return "no K is expected to be faster than plain decoding at these loads"
    best = max(by_load, key=lambda at: at.decode.value)
    return f"expected at most {best.decode.value:.2f} times plain decoding, at {best.requests} at once"


def _where(paying: list[int], loads: list[int]) -> str:
    """The loads at which it pays, in words; empty if it pays at all of them."""
    if paying == loads:
        return ""
    if paying == loads[: len(paying)]:
        return f" up to {paying[-1]} at once"
    return f" only at {', '.join(map(str, paying))} at once"
