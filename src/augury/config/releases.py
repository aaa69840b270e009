"""What a given vLLM release would say: keys, values and methods that came and went, and its traps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.config.errors import ConfigError
from augury.config.keys import OWN, Key
from augury.config.notes import Notes
from augury.config.versions import IGNORED_SILENTLY, NEWEST, release, valid_in, version
from augury.methods.registry import ALIASES, METHODS

V2_DEFAULT = version("0.25")  # from here vLLM prefers the new model runner
FIXED_K = ("suffix", "medusa", "ngram_gpu", "extract_hidden_states")  # the old runner asserts the configured K for them


def check_release(keys: dict[str, Any], declared: Mapping[str, Key], as_of: str, notes: Notes) -> None:
    """Refuse what that release refuses, and leave out what it dropped without a word."""
    wanted = release(as_of)
    for name, value in list(keys.items()):
        if name not in declared or value is None:
            continue
        known = declared[name]
        if known.since == OWN or not valid_in(wanted, known.since, known.until):
            if not forgives(as_of):
                raise ConfigError(f"speculative_config.{name} is not valid in vLLM {as_of}: {_when(known)}.")
            del keys[name]
            notes.add("vllm", name, f"vLLM {as_of} drops it without a word: {_when(known)}.")
        elif isinstance(value, str) and value in known.values:
            _check_value(name, value, known.values[value], as_of)
    if wanted > version(NEWEST + ".999"):
        notes.add("unchecked", "as_of", f"what is known here ends with vLLM {NEWEST}; {as_of} may differ.")


def _when(known: Key) -> str:
    if known.since == OWN:
        return "it is Augury's own; remove it there"
    if known.until is None:
        return f"it came with {known.since}; upgrade, or remove it"
    return f"it was valid from {known.since} to before {known.until}; instead: {known.instead or 'remove it'}"


def _check_value(name: str, value: str, window: tuple[str, str | None], as_of: str) -> None:
    since, until = window
    if since != OWN and valid_in(release(as_of), since, until):
        return
    when = (
        "it is Augury's own" if since == OWN else f"it is valid from {since}" + (f" to before {until}" if until else "")
    )
    raise ConfigError(f"speculative_config.{name}={value!r} is refused by vLLM {as_of}: {when}.")


def forgives(as_of: str) -> bool:
    """Whether that release dropped unknown keys without a word."""
    return valid_in(release(as_of), *IGNORED_SILENTLY)


def check_method(method: str, as_of: str) -> None:
    """Refuse a method that release did not know or could not run."""
    card = METHODS[ALIASES.get(method, method)]
    wanted, since = release(as_of), card.aliases.get(method, card.vllm_since)
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


def vllm_quirks(method: str, keys: Mapping[str, Any], as_of: str | None, notes: Notes) -> None:
    """Where vLLM takes the configuration and then does something else than one would think."""
    card = METHODS[method]
    parallel = bool(keys.get("parallel_drafting")) and method not in ("dflash", "dspark")
    old = card.vllm_old_runner or parallel or bool(keys.get("use_heterogeneous_vocab"))
    if method in FIXED_K and keys.get("num_speculative_tokens_per_batch_size"):
        notes.add(
            "vllm", "num_speculative_tokens_per_batch_size", f"vLLM cannot combine it with {method}.", refused=True
        )
    if not card.vllm_async and release(as_of or NEWEST) >= version("0.14"):
        notes.add("vllm", "method", "vLLM turns asynchronous scheduling off for it.")
    if release(as_of or NEWEST) < V2_DEFAULT:
        return
    if card.vllm_until and as_of is None:
        notes.add(
            "vllm", "method", f"vLLM {NEWEST} accepts the name {method!r} and has nothing to run it with.", refused=True
        )
    if old:
        notes.add("vllm", "method", "vLLM falls back to its deprecated model runner for this, with one warning.")
    if old and keys.get("rejection_sample_method") == "block":
        notes.add("vllm", "rejection_sample_method", "vLLM's old runner silently treats 'block' as 'standard'.")
    if old and keys.get("enable_adaptive_verification"):
        notes.add("vllm", "enable_adaptive_verification", "vLLM's old runner refuses it.", refused=True)
    if method == "draft_model" and keys.get("disable_padded_drafter_batch"):
        notes.add("vllm", "disable_padded_drafter_batch", "vLLM has not implemented it for draft_model.", refused=True)
    if method == "suffix":
        notes.add("vllm", "method", "vLLM needs `pip install arctic-inference==0.1.1` for it; here it is built in.")
