"""`augury config`: what a speculative_config means, before anything is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts, TargetInfo, read_facts
from augury.config.installed import with_drafter
from augury.config.profiles import PROFILES, ConfigProfile
from augury.config.releases import vllm_slots
from augury.config.resolve import resolve
from augury.config.runnable import check_runnable
from augury.config.speculative import SpeculativeConfig
from augury.config.speculators import is_speculator, swap
from augury.config.surfaces import SHORTCUTS, from_json, gather, read_yaml
from augury.config.versions import release
from augury.methods.notes import LOUD, Note

FINE, WARNED, REFUSED = 0, 1, 2  # exit codes


class ConfigQuestion(NamedTuple):
    """A configuration and what to check it against."""

    given: dict[str, Any]
    target: str | None = None
    as_of: str | None = None
    tensor_parallel_size: int | None = None
    max_model_len: int | None = None


class CheckOptions(NamedTuple):
    """The options of the command line."""

    text: str | None
    flag: str | None
    shortcuts: dict[str, Any]
    file: Path | None
    target: str | None
    as_of: str | None
    tensor_parallel_size: int | None
    max_model_len: int | None


class CheckedConfig(NamedTuple):
    """The result: resolved, or refused."""

    config: SpeculativeConfig | None
    error: str | None  # why it is refused
    not_here: str | None = None  # why this engine cannot run it, though it is valid
    before: tuple[Note, ...] = ()  # notes on decisions made before it was resolved

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes on every decision."""
        return (*self.before, *(self.config.notes if self.config else ()))


def ask(asked: CheckOptions) -> ConfigQuestion:
    """Put the question together: the command line first, then a YAML file, then the environment."""
    stored = read_yaml(asked.file) if asked.file else {}
    target = asked.target if asked.target is not None else stored.get("model")
    if target is not None and (not isinstance(target, str) or not target):
        raise ConfigError(f"the target is {target!r}; name a model's directory.")
    if asked.target is not None and _facts(asked.target) is None:
        raise ConfigError(f"--target {asked.target}: no config.json there; name a model's directory.")
    given = _written(asked) or _stored(stored) or gather(None, None, os.environ)
    if given is None and target is not None and is_speculator(read_facts(target)):
        given = {}
    if given is None:
        raise ConfigError(
            'no configuration; write `augury config check \'{"method": "ngram", "num_speculative_tokens": 4}\'`, or '
            "use --config FILE."
        )
    if asked.as_of is not None:
        release(asked.as_of)  # an unknown one is refused
    return ConfigQuestion(
        given,
        target,
        asked.as_of,
        asked.tensor_parallel_size or _whole(stored, "tensor-parallel-size"),
        asked.max_model_len or _whole(stored, "max-model-len"),
    )


def _written(asked: CheckOptions) -> dict[str, Any] | None:
    given = gather(asked.flag, asked.shortcuts)
    if asked.text is None:
        return given
    whole = from_json(asked.text, "the configuration")
    for name in given or {}:
        if name in whole:
            raise ConfigError(f"{name!r} is given twice, in the argument and by a flag; keep one.")
    return {**whole, **(given or {})}


def _stored(stored: dict[str, Any]) -> dict[str, Any] | None:
    given = stored.get("speculative-config")
    shortcuts = {name: stored.get(name.replace("_", "-")) for name in SHORTCUTS}
    text = given if isinstance(given, str) or given is None else json.dumps(given, default=str)
    return gather(text, shortcuts)


def _whole(stored: dict[str, Any], name: str) -> int | None:
    value = stored.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConfigError(f"{name}={value!r} in the file must be a whole number of at least 1.")
    return value


def judge(question: ConfigQuestion) -> CheckedConfig:
    """Resolve a configuration against a target and a release."""
    notes: tuple[Note, ...] = ()
    try:
        given, name = question.given, question.target
        swapped = swap(name, given) if name else None
        if swapped:
            says = f"{name} is a speculator: its target {swapped.target} stands in for it."
            notes += (Note("inferred", "model", says),)
            name, given = swapped.target, swapped.speculative_config
        facts = _facts(name) if name else None
        if name and facts is None:
            says = f"the target {name} is not on this machine; nothing was compared with it (--target DIR)."
            notes += (Note("unchecked", "model", says),)
        if facts is not None and question.as_of is None and (found := with_drafter(given, facts)) is not given:
            given = dict(found)
            notes += (Note("inferred", "model", "the drafter that is installed for this target."),)
        size = question.tensor_parallel_size or (1 if question.as_of else None)  # vLLM's default
        target = TargetInfo(name, facts, size, question.max_model_len)
        config = resolve(given, target, question.as_of)
        assert config is not None
    except ConfigError as error:
        return CheckedConfig(None, str(error))
    try:
        check_runnable(config)
    except ConfigError as error:
        return CheckedConfig(config, None, str(error), notes)
    return CheckedConfig(config, None, None, notes)


def _facts(target: str) -> ModelFacts | None:
    if target == "default":
        from augury.model.store import resolve as find_model

        target = str(find_model(target))
    return read_facts(target)


def exit_code(answer: CheckedConfig, as_of: str | None) -> int:
    """0 fine, 1 with warnings, 2 refused; with a release, its refusals count, without one, whether we can run it."""
    # What was translated was valid in the release asked about, or it would have been refused before.
    if answer.config is None or (as_of and any(note.refused and note.kind != "translated" for note in answer.notes)):
        return REFUSED
    if any(note.kind in LOUD for note in answer.notes) or (as_of is None and answer.not_here):
        return WARNED
    return FINE


def as_record(answer: CheckedConfig, as_of: str | None = None) -> dict[str, Any]:
    """An answer as a JSON object."""
    config = answer.config
    notes = [{"kind": n.kind, "key": n.key, "text": n.text, "vllm_refuses": n.refused} for n in answer.notes]
    record: dict[str, Any] = {
        "error": answer.error,
        "not_runnable_here": answer.not_here,
        "config": None,
        "notes": notes,
    }
    if config is not None:
        record |= {"config": config.to_dict(), "derived": derived(config, as_of), "hash": config.compute_hash()}
    return record


def derived(config: SpeculativeConfig, as_of: str | None = None) -> dict[str, Any]:
    """What an engine derives from a configuration: vLLM's engine if a release is named, otherwise ours."""
    slots = vllm_slots(config.card, config.num_speculative_tokens, config.parallel_drafting)
    return {
        "lossless": config.lossless,
        "rows_per_step": config.rows_per_step,
        "extra_slots": slots if as_of else config.extra_slots,
        "kv_lookahead": config.kv_lookahead,
        "prefill_lookahead": config.prefill_lookahead,
        "continues_hidden_states": config.continues_hidden_states,
        "reads_auxiliary_layers": config.reads_auxiliary_layers,
    }


def resolved_profiles(name: str | None) -> list[tuple[ConfigProfile, CheckedConfig]]:
    """The profiles, or the one of this name, each resolved."""
    chosen = [p for p in PROFILES if name is None or name.lower().replace("-", " ") == p.name]
    if not chosen:
        known = ", ".join(repr(p.name) for p in PROFILES)
        raise ConfigError(f"profile {name!r} is unknown; there are {known}.")
    return [(profile, judge(ConfigQuestion(profile.config))) for profile in chosen]
