"""Which methods a target could run, their acceptance, and where it is known from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts
from augury.config.versions import NEWEST, Version, valid_in, version
from augury.methods.facts import TargetInfo
from augury.methods.mtp import trained_depth
from augury.methods.recognise import choose
from augury.methods.registry import LOOK_UPS, METHODS
from augury.methods.spec import Case
from augury.tools.advise.accept import ENOUGH_DRAFTS, AcceptanceSource, Replayed, StepSamples, drafts_of, from_profile
from augury.tools.advise.checkpoints import find_checkpoint
from augury.tools.advise.cost import Cost
from augury.tools.advise.curve import CostCurve
from augury.tools.advise.drafters import DraftingCost, drafting_for
from augury.tools.advise.published import drafter_exists, find_published
from augury.tools.advise.shape import ModelShape
from augury.tools.advise.target import known_targets
from augury.tools.advise.traffic import Recorded, Traffic
from augury.tools.knowledge.base import knowledge
from augury.tools.knowledge.conditions import KnownFacts, holds


@dataclass(frozen=True, slots=True)
class AdviceInputs:
    """Everything the advice is computed from."""

    facts: ModelFacts
    shape: ModelShape | None  # None if config.json does not give it and a cost curve makes it unnecessary
    cost: Cost
    traffic: Traffic
    recorded: Recorded | None = None
    profiles: Sequence[Mapping[str, Any]] = ()
    drafters: Sequence[ModelFacts] = ()
    release: Version = field(default_factory=lambda: version(NEWEST))
    loads: tuple[int, ...] = (1, 8, 32, 64, 128)
    max_memory: float | None = None  # bytes for a drafter
    release_named: bool = False

    @property
    def measured(self) -> bool:
        """Whether costs were measured (a cost curve) rather than computed from published figures (a roofline)."""
        return isinstance(self.cost, CostCurve)

    @property
    def release_name(self) -> str:
        """The release with its patch number, 0 where none was named."""
        return f"{self.release.major}.{self.release.minor}.{self.release.micro}"

    @property
    def ours(self) -> bool:
        """Whether the advice is for our own engine: costs were measured there, and no vLLM release was named."""
        return self.measured and not self.release_named


@dataclass(frozen=True, slots=True)
class Candidate:
    """A method and what is known about it; without `acceptance`, `missing` says why it cannot be judged."""

    method: str
    config: dict[str, Any]
    source: str
    yours: bool = False  # known from the user's own trace or profile
    acceptance: AcceptanceSource | None = None
    drafting: DraftingCost | None = None
    notes: tuple[str, ...] = ()
    missing: str = ""
    exists: bool = True  # given, or published for targets of this shape


@dataclass(frozen=True)
class Limited:
    """An acceptance source limited to some values of K."""

    inner: AcceptanceSource
    lengths: tuple[int, ...]

    def at(self, tokens: int) -> StepSamples:
        """Samples of a step with this K."""
        return self.inner.at(tokens)


def candidates(asked: AdviceInputs) -> list[Candidate]:
    """Every method to judge, each once: what the user gave takes precedence over what is published for the family."""
    found: dict[str, Candidate] = {}
    for candidate in (*_model_free(asked), *_given(asked), *_of_family(asked)):
        found.setdefault(candidate.method, candidate)
    return [one for one in found.values() if _released(one.method, asked)]


def _released(method: str, asked: AdviceInputs) -> bool:
    """Whether the vLLM release supports the method; our own engine supports all of them."""
    card = METHODS[method]
    gap = card.vllm_gap is not None and valid_in(asked.release, *card.vllm_gap)
    if card.own or asked.ours:
        return asked.ours
    return valid_in(asked.release, card.vllm_since, card.vllm_until) and not gap


def _model_free(asked: AdviceInputs) -> Iterator[Candidate]:
    for first in (name for name, look_up in LOOK_UPS.items() if not look_up.twin_of):
        alike = [first, *(name for name, look_up in LOOK_UPS.items() if look_up.twin_of == first)]
        # A twin makes the same drafts nearer to the target; a curve measures the method that was asked for.
        known = [name for name in alike if not asked.measured and asked.release >= version(METHODS[name].vllm_since)]
        method = known[-1] if known else first
        config = {"method": method, **LOOK_UPS[method].starts[0]}
        profile = next((p for p in asked.profiles if p["method"] in alike), None)
        if asked.recorded is not None:
            counts = asked.recorded.replayed(config, LOOK_UPS[method].lengths)
            source = f"replay of {asked.traffic.requests} answers of yours"
            yield _priced(asked, Candidate(method, config, source, True, Replayed(counts)))
        elif profile is not None:
            yield _priced(asked, _profiled(profile, method, config))
        else:
            yield _priced(asked, _from_published(asked, method, config))


def _given(asked: AdviceInputs) -> Iterator[Candidate]:
    """Candidates given by --profile and --drafter."""
    drafters = {_method_of(facts): facts for facts in asked.drafters}
    for profile in asked.profiles:
        method = str(profile["method"])
        if method not in METHODS:
            raise ConfigError(f"--profile: method {method!r} is unknown; known are {', '.join(METHODS)}.")
        if METHODS[method].weights != "none":
            drafter = drafters.get(method)
            yield _priced(asked, _profiled(profile, method, _config(asked, method, drafter)), drafter)
    for method, facts in drafters.items():
        yield _priced(asked, _from_published(asked, method, _config(asked, method, facts)), facts)


def _of_family(asked: AdviceInputs) -> Iterator[Candidate]:
    """Candidates from the target's own checkpoint (MTP) and those published for its family (knowledge/targets.yaml)."""
    for method in family_methods(asked.facts):
        known = find_checkpoint(method, asked.facts)
        found = _from_published(asked, method, _config(asked, method, None))
        found = replace(found, notes=(*found.notes, known.remark(asked.facts))) if known else found
        drafter = _in_table(known.model) if known and METHODS[method].usual is None else None
        found = _priced(asked, found, drafter)
        yield replace(found, exists=known is not None or drafter_exists(method, asked.facts))


def _in_table(name: str) -> ModelFacts | None:
    """Facts of a model in models.yaml, by name and without its files; None if it is not listed."""
    plain = name.rpartition("/")[2].lower()
    key = next((key for key in known_targets() if plain.startswith(key)), None)
    return ModelFacts(name, known_targets()[key]) if key else None


def family_methods(facts: ModelFacts) -> list[str]:
    """Methods that knowledge/targets.yaml names for this target; mtp only if config.json has the layers."""
    depth = trained_depth(facts.raw)
    known = KnownFacts({"target_type": facts.kind, "target_mtp": depth})
    found: dict[str, None] = {}
    for entry in knowledge("targets").values():
        if "method" not in entry.condition and holds(entry.condition, known):
            text = entry.message.lower()
            for name, prose in ((name, prose) for name, card in METHODS.items() for prose in card.prose):
                text = text.replace(prose, name)
            found |= dict.fromkeys(name for name in METHODS if re.search(rf"\b{name}\b", text))
    return [name for name in found if METHODS[name].weights != "target" or depth]


def _method_of(facts: ModelFacts) -> str:
    chosen = choose("", facts.name, facts.raw)
    assert chosen is not None  # there is a name
    return chosen.method


def _config(asked: AdviceInputs, method: str, drafter: ModelFacts | None) -> dict[str, Any]:
    """The dictionary for -sc, with a placeholder for the drafter if none is given or known to be published."""
    if METHODS[method].weights == "target" and drafter is None:
        return {"method": method}
    known = None if drafter else find_checkpoint(method, asked.facts)
    return {"method": method, "model": drafter.name if drafter else known.model if known else f"<{method} drafter>"}


def _profiled(profile: Mapping[str, Any], method: str, config: dict[str, Any]) -> Candidate:
    conditions = profile["measurement_conditions"]
    model = conditions.get("model", conditions.get("target"))
    told = f"your profile, K={profile['num_speculative_tokens']}" + (f", {model}" if isinstance(model, str) else "")
    drafts = drafts_of(profile)
    few = f"a profile of {drafts} drafts is too small ({ENOUGH_DRAFTS} are needed); hence the wide interval"
    enough = drafts >= ENOUGH_DRAFTS
    return Candidate(method, config, told, enough, from_profile(profile), notes=() if enough else (few,))


def _from_published(asked: AdviceInputs, method: str, config: dict[str, Any]) -> Candidate:
    figure = find_published(method, asked.facts.kind, asked.traffic.kind)
    if figure is None:
        return Candidate(method, config, "", missing="no published acceptance; measure it and give --profile")
    rates, note = figure.acceptance(asked.traffic.kind)
    low, _, high = figure.length
    source = f"published, not yours: {low:g}-{high:g} at K={figure.tokens}; {figure.conditions} ({figure.source})"
    return Candidate(method, config, source, False, rates, notes=(note,) if note else ())


def _priced(asked: AdviceInputs, candidate: Candidate, drafter: ModelFacts | None = None) -> Candidate:
    """The candidate with its drafting cost and allowed values of K; or with what is missing to price it."""
    if candidate.acceptance is None:
        return candidate
    method = candidate.method
    if isinstance(asked.cost, CostCurve) and not asked.cost.drafts(method):
        wanted = f'augury bench --cost-curve FILE -sc \'{{"method": "{method}", ...}}\''
        why = f"the cost curve has no drafting time of it; measure: {wanted}"
        return _without(candidate, why)
    try:
        drafting = drafting_for(method, asked.shape, drafter)
    except ConfigError as error:
        return _without(candidate, str(error).removeprefix(f"{method}: ").rstrip("."))
    known = Case(target=TargetInfo(asked.facts.name, asked.facts))
    lengths = tuple(k for k in candidate.acceptance.lengths if METHODS[method].check_tokens(k, known) is None)
    notes = candidate.notes + ((drafting.assumed,) if drafting.assumed and not asked.measured else ())
    return replace(candidate, acceptance=Limited(candidate.acceptance, lengths), drafting=drafting, notes=notes)


def _without(candidate: Candidate, why: str) -> Candidate:
    told = candidate.method, candidate.config, candidate.source, candidate.yours
    return Candidate(*told, notes=candidate.notes, missing=why)
