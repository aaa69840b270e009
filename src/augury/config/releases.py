"""What a given vLLM release would say: keys, values and methods that were added or dropped, and its traps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.config.errors import ConfigError, shown
from augury.config.keys import OWN, ConfigKey
from augury.config.versions import IGNORED_SILENTLY, NEWEST, Version, beyond_newest, release, valid_in, version
from augury.config.vllm_class import class_refuses
from augury.methods.notes import Note
from augury.methods.registry import ALIASES, METHODS
from augury.methods.spec import Case, Method

V2_DEFAULT = version("0.25")  # from here vLLM prefers the new model runner


def at_release(
    keys: Mapping[str, Any], declared: Mapping[str, ConfigKey], as_of: str
) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """Refuse what that release refuses, and leave out what it silently dropped."""
    wanted, left, notes = release(as_of), dict(keys), []
    for name, value in keys.items():
        known = declared[name]
        if known.since == OWN or not valid_in(wanted, known.since, known.until):  # null or not
            if not forgives(as_of):
                raise ConfigError(f"speculative_config.{name} is not valid in vLLM {as_of}: {_when(known)}.")
            del left[name]
            notes.append(Note("vllm", name, f"vLLM {as_of} silently drops it: {_when(known)}."))
        elif value is None:
            continue
        elif isinstance(value, str) and value in known.values:
            _check_value(name, value, known.values[value], as_of)
        elif any(since == OWN for since, _ in known.values.values()):  # the usual list of words would name ours too
            theirs = [repr(w) for w, (s, u) in known.values.items() if s != OWN and valid_in(wanted, s, u)]
            raise ConfigError(f"speculative_config.{name}={shown(value)} must be one of {', '.join(theirs)}.")
    if beyond_newest(wanted):
        notes.append(Note("unchecked", "as_of", f"what is known here ends with vLLM {NEWEST}; {as_of} may differ."))
    return left, tuple(notes)


def _when(known: ConfigKey) -> str:
    if known.since == OWN:
        return "it is Augury's own; remove it there"
    if known.until is None:
        return f"it came with {known.since}; upgrade, or remove it"
    return f"it was valid from {known.since} to before {known.until}; instead: {known.instead_there or 'remove it'}"


def _check_value(name: str, value: str, window: tuple[str, str | None], as_of: str) -> None:
    since, until = window
    if since != OWN and valid_in(release(as_of), since, until):
        return
    when = (
        "it is Augury's own" if since == OWN else f"it is valid from {since}" + (f" to before {until}" if until else "")
    )
    raise ConfigError(f"speculative_config.{name}={value!r} is refused by vLLM {as_of}: {when}.")


def forgives(as_of: str) -> bool:
    """Whether that release silently dropped unknown keys."""
    return valid_in(release(as_of), *IGNORED_SILENTLY)


def known_to(as_of: str, card: Method) -> bool:
    """Whether that release had the method at all."""
    return not card.own and valid_in(release(as_of), card.vllm_since, None)


def check_method(method: str, card: Method, as_of: str) -> None:
    """Refuse a name that the release did not know, or the resolved method if the release cannot run it."""
    written = METHODS[ALIASES.get(method, method)]
    if card.own:
        raise ConfigError(f"speculative_config.method={method!r} is Augury's own; vLLM {as_of} refuses it.")
    wanted, since = release(as_of), written.aliases.get(method, written.vllm_since)
    if not valid_in(wanted, since, None):
        raise ConfigError(f"speculative_config.method={method!r} came with vLLM {since}; {as_of} refuses it: upgrade.")
    if card.vllm_gap and valid_in(wanted, *card.vllm_gap):
        first, back = card.vllm_gap
        raise ConfigError(
            f"speculative_config.method={method!r} is refused from vLLM {first} to before {back}; upgrade to {back}."
        )
    if card.vllm_until and not valid_in(wanted, since, card.vllm_until):
        raise ConfigError(
            f"speculative_config.method={method!r} is only a name in vLLM {as_of}: nothing runs it since "
            f"{card.vllm_until}; choose another method, or run it here."
        )


def vllm_quirks(card: Method, case: Case, as_of: str | None) -> tuple[Note, ...]:
    """Notes on where vLLM refuses the configuration, or accepts it and does something unexpected."""
    keys, wanted = case.keys, release(as_of or NEWEST)
    notes = list(class_refuses(card, case, as_of)) if as_of else []
    if card.own:
        return (Note("vllm", "method", f"vLLM has no {card.name!r}: it is Augury's own.", refused=True),)
    fixed = card.vllm_fixed_tokens and runs_old(card, keys, wanted) is not False
    if fixed and keys.get("num_speculative_tokens_per_batch_size"):
        says = f"vLLM cannot combine it with {card.name}."
        notes.append(Note("vllm", "num_speculative_tokens_per_batch_size", says, refused=True))
    if not card.vllm_async and wanted >= version("0.14"):
        notes.append(Note("vllm", "method", "vLLM turns asynchronous scheduling off for it."))
    if wanted < V2_DEFAULT:
        return tuple(notes)
    if card.vllm_until and as_of is None:
        says = f"vLLM {NEWEST} accepts the name {card.name!r} and has nothing to run it with."
        notes.append(Note("vllm", "method", says, refused=True))
    if falls_back(card, keys):
        says = "vLLM falls back to its deprecated model runner for this, with one warning."
        notes.append(Note("vllm", "method", says))
        if keys.get("rejection_sample_method") == "block":
            says = "vLLM's old runner silently treats 'block' as 'standard'."
            notes.append(Note("vllm", "rejection_sample_method", says))
        if keys.get("enable_adaptive_verification"):
            notes.append(Note("vllm", "enable_adaptive_verification", "vLLM's old runner refuses it.", refused=True))
    for name in card.vllm_lacks:
        if keys.get(name) and runs_old(card, keys, wanted):
            notes.append(Note("vllm", name, f"vLLM has not implemented it for {card.name}.", refused=True))
        elif keys.get(name):
            notes.append(Note("vllm", name, f"vLLM's new model runner does not read it for {card.name}."))
    if card.vllm_needs:
        notes.append(Note("vllm", "method", f"vLLM needs `{card.vllm_needs}` for it; here it is built in."))
    return tuple(notes)


def runs_old(card: Method, keys: Mapping[str, Any], wanted: Version) -> bool | None:
    """Whether a release runs the method on its old model runner; None where that is not known."""
    if falls_back(card, keys) or wanted < V2_DEFAULT:
        return True
    if card.vllm_new_runner is not None and wanted < version(card.vllm_new_runner[1]):
        return True if wanted < version(card.vllm_new_runner[0]) else None
    return False


def vllm_slots(card: Method, tokens: int, parallel: bool) -> int:
    """Drafting rows per request that vLLM reserves: with parallel_drafting, also for methods that do not read it."""
    known = card.extra_slots(tokens, parallel)
    return tokens - 1 if parallel and not known and "parallel_drafting" not in card.keys else known


def falls_back(card: Method, keys: Mapping[str, Any]) -> bool:
    """Whether vLLM leaves its new model runner for the old one."""
    parallel = bool(keys.get("parallel_drafting")) and not card.always_parallel
    return card.vllm_old_runner or parallel or bool(keys.get("use_heterogeneous_vocab"))
