"""From facts to causes: the symptoms, their possible causes, best supported first, and what is still unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from augury.tools.knowledge.base import Cause, Entry, Evidence, knowledge
from augury.tools.knowledge.conditions import KnownFacts, holds
from augury.tools.live.facts import lines, sentence

KINDS = ("bands", "diagnoses")
RANK = {"error": 0, "warning": 1, "note": 2}
FOR, AGAINST = 2.0, 2.0  # the weight of one fact; a cause's place in its list counts for at most 1
BASELINE = "--baseline-url or --baseline-json, of the same model without speculation"
MORE_LOG = "a log with the start-up lines, and more lines about drafts"
LOG, CONFIG, LONGER = "--log FILE", "--config COMMAND", "a longer --interval"
# The source that could supply a missing fact, and the fact's name for people.
TOLD_BY = {
    "speed_up": (BASELINE, "the speed-up"),
    "tail_worse": (BASELINE, "its tails"),
    "prefix_hits_fell": (BASELINE, "its prefix hits"),
    "itl_unchanged": (BASELINE, "its latency between tokens"),
    "acceptance_falling": (LOG, "whether acceptance falls"),
    "refused_in_log": (LOG, "errors at the start"),
    "logged_async": (LOG, "asynchronous scheduling"),
    "logged_eager": (LOG, "graphs"),
    "graph_limit": (LOG, "sizes of graphs"),
    "logged_runner": (LOG, "the model runner"),
    "method": (CONFIG, "the method"),
    "speculates": (CONFIG, "whether speculation was asked for"),
    "findings": (CONFIG, "faults of the configuration"),
    "target_mtp": (CONFIG, "whether the target has MTP layers"),
    "token_ids_differ": (CONFIG, "whether the tokenizers agree"),
    "version": ("--vllm-version", "the release"),
    "queue_growing": (LONGER, "the queue"),
    "kv_usage_rising": (LONGER, "whether the KV cache fills"),
    "preemptions_rising": (LONGER, "preemptions"),
    "acceptance_rate": ("traffic, or augury check --probe", "acceptance"),
    "class_spread": ("one class of prompts at a time to augury check", "acceptance by class"),
}
# An entry is left out if one of these, which say more about the same symptom, is also found.
SAID_BY = {
    "rate-below-band": {"rate-under-half"},
    "length-below-band": {"length-one", "regime-short-drafts"},
    "acceptance-fell": {"signal-acceptance-falls-kv-climbs", "signal-preemptions"},
    "regime-short-drafts": {"length-one"},
    "drafts-none-now": {"drafts-stopped"},
    "start-refused": {"start-failed"},
    "no-counters": {"regime-no-drafts"},
    "no-drafts": {"regime-no-drafts"},
}


@dataclass(frozen=True, slots=True)
class Symptom:
    """An entry that applies, with its texts filled in."""

    entry: Entry
    message: str
    why: str
    fix: str

    def record(self) -> dict[str, str]:
        """The symptom as JSON."""
        return {
            "id": self.entry.id,
            "severity": self.entry.severity,
            "message": self.message,
            "why": self.why,
            "fix": self.fix,
            "source": self.entry.source,
        }


@dataclass(frozen=True, slots=True)
class Suspect:
    """A cause, how well it is supported, and what would confirm it."""

    cause: str
    symptom: str  # id of its entry
    place: float  # 1 for the first of its list, falling towards 0
    supported: tuple[str, ...]
    contradicted: tuple[str, ...]
    confirm: str

    @property
    def score(self) -> float:
        """Its place in the list, plus 2 for each fact that supports it, minus 2 for each that contradicts it."""
        return self.place + FOR * len(self.supported) - AGAINST * len(self.contradicted)

    def record(self) -> dict[str, Any]:
        """The cause and its evidence as JSON."""
        return {
            "cause": self.cause,
            "of": self.symptom,
            "score": round(self.score, 2),
            "place": round(self.place, 2),
            "for": list(self.supported),
            "against": list(self.contradicted),
            "confirm": self.confirm,
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Symptoms, likely causes and what is unknown."""

    symptoms: list[Symptom]
    suspects: list[Suspect]  # best first
    ruled_out: list[Suspect]
    unknown: dict[str, list[str]]  # the source that could tell -> what

    @property
    def wrong(self) -> bool:
        """Whether anything but notes was found."""
        return any(symptom.entry.severity != "note" for symptom in self.symptoms)


def diagnose(
    facts: Mapping[str, Any], keys: Mapping[str, Any], words: Mapping[str, str], has_log: bool = False
) -> Diagnosis:
    """Test every entry against the facts; `words` fill in URL and COMMAND in the measurements."""
    world, symptoms = KnownFacts(facts, keys), []
    suspects: list[Suspect] = []
    missing: set[str] = set()
    for entry in knowledge(*KINDS).values():
        answer = holds(entry.condition, world)
        if answer:
            symptoms.append(Symptom(entry, *lines(entry, facts)))
            suspects += _suspects(entry, world, words)
            missing |= {name for cause in entry.causes for name in _unknown_of(cause, world)}
        elif answer is None:
            missing |= set(_asked(entry.condition)) - facts.keys() - {"class_spread"}  # which no server exports
    held = {symptom.entry.id for symptom in symptoms}
    symptoms = [symptom for symptom in symptoms if not SAID_BY.get(symptom.entry.id, set()) & held]
    symptoms.sort(key=lambda symptom: RANK[symptom.entry.severity])
    ranked = sorted(_merged(suspects), key=lambda suspect: -suspect.score)
    left = [suspect for suspect in ranked if suspect.score > 0]
    unknown = {} if facts.get("failed_in_log") else _told_by(missing, has_log)  # it never served
    return Diagnosis(symptoms, left, [s for s in ranked if s.score <= 0], unknown)


def _suspects(entry: Entry, world: KnownFacts, words: Mapping[str, str]) -> Iterator[Suspect]:
    for number, cause in enumerate(entry.causes):
        confirm = sentence(cause.confirm, world.facts)
        for word, text in words.items():
            confirm = confirm.replace(word, text)
        place = 1 - number / len(entry.causes)
        yield Suspect(
            sentence(cause.cause, world.facts),
            entry.id,
            place,
            _said(cause.supported, world),
            _said(cause.contradicted, world),
            confirm,
        )


def _said(evidence: tuple[Evidence, ...], world: KnownFacts) -> tuple[str, ...]:
    return tuple(sentence(one.says, world.facts) for one in evidence if holds(one.when, world))


def _merged(suspects: list[Suspect]) -> list[Suspect]:
    """Keep each cause once, with its best score."""
    best: dict[str, Suspect] = {}
    for suspect in suspects:
        if suspect.cause not in best or suspect.score > best[suspect.cause].score:
            best[suspect.cause] = suspect
    return list(best.values())


def _unknown_of(cause: Cause, world: KnownFacts) -> Iterator[str]:
    for evidence in (*cause.supported, *cause.contradicted):
        if holds(evidence.when, world) is None:
            yield from (name for name in _asked(evidence.when) if name not in world.facts)


def _asked(condition: Mapping[str, Any]) -> Iterator[str]:
    """The facts that a condition asks for."""
    for word, operand in condition.items():
        if word == "fact":
            yield operand
        elif word in ("all", "any"):
            for inner in operand:
                yield from _asked(inner)
        elif word in ("not",) or isinstance(operand, Mapping):
            yield from _asked(operand)
        elif word in ("method", "version"):
            yield word


def _told_by(missing: set[str], has_log: bool) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, (who, word) in TOLD_BY.items():
        if name in missing:
            found.setdefault(MORE_LOG if who == LOG and has_log else who, []).append(word)
    return found
