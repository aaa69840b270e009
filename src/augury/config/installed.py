"""Drafters from pip packages: found by entry point, each made for one target.

A package names a directory in the group `augury.drafters`; drafters.json in it says which target its drafters were
trained for, by fingerprint, and where each of them lies:

    {"target": {"name": "...", "fingerprint": "..."},
     "drafters": [{"method": "...", "directory": "...", "num_speculative_tokens": 3, "settings": {...}}, ...]}

`num_speculative_tokens` is the default K; `settings`, if there are any, are the keys that the drafter is meant for.
What a drafter's own config.json says of its target (`augury_target`) is compared with the target it is used with.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts
from augury.config.fingerprint import fingerprint, name_of
from augury.config.truth import truth
from augury.methods.facts import MARK
from augury.methods.hybrid import drafters_of
from augury.methods.registry import ALIASES, METHODS

logger = logging.getLogger("augury")

GROUP, INDEX = "augury.drafters", "drafters.json"
SAY_HOW_MANY = ("num_speculative_tokens_per_batch_size", "speculative_token_tree")


class Installed(NamedTuple):
    """One drafter of a package."""

    package: str
    method: str
    target: str  # its name
    fingerprint: str
    directory: Path
    tokens: int | None = None  # K if none is given
    settings: Mapping[str, Any] = MappingProxyType({})  # keys that select this drafter and no other


@cache
def installed() -> tuple[Installed, ...]:
    """All installed drafters; a package that cannot be read is left out, with one warning."""
    found: list[Installed] = []
    for entry in entry_points(group=GROUP):
        package = entry.dist.name if entry.dist else entry.name
        try:
            root = Path(entry.load())
            told = json.loads((root / INDEX).read_text(encoding="utf-8"))
            target = told["target"]
            found += [
                Installed(
                    package,
                    one["method"],
                    target["name"],
                    target["fingerprint"],
                    root / one["directory"],
                    one.get("num_speculative_tokens"),
                    one.get("settings") or {},
                )
                for one in told["drafters"]
            ]
        except Exception as error:  # a third-party module may raise anything when it is imported
            logger.warning("the drafters of the package %s are left out: %s.", package, _why(error))
    return tuple(found)


def _why(error: Exception) -> str:
    if isinstance(error, KeyError | TypeError | AttributeError):
        return f"its {INDEX} is not as docs/publish-a-drafter.md describes it ({error})"
    if isinstance(error, FileNotFoundError) and str(error.filename).endswith(INDEX):
        return f"there is no {error.filename}; build it with its data files, as docs/publish-a-drafter.md shows"
    return str(error) or type(error).__name__


def offered(wanted: Mapping[str, Any] | None) -> list[Installed]:
    """Drafters for a configuration that names a method with its own weights but no model; in a hybrid, for each."""
    if several := drafters_of(wanted):
        return [one for part in several for one in offered(part)]
    given = wanted.get("method") if wanted is not None else None
    method = ALIASES.get(given, given) if isinstance(given, str) else None
    if wanted is None or wanted.get("model") or method not in METHODS or METHODS[method].weights != "draft":
        return []
    fitting = [one for one in installed() if one.method == method and _asked_for(one, wanted)]
    return sorted(fitting, key=lambda one: -len(one.settings))


def _asked_for(one: Installed, wanted: Mapping[str, Any]) -> bool:
    """Whether all keys that a drafter is meant for were written; switches match in any spelling."""
    return all(
        (truth(wanted.get(key)) if isinstance(value, bool) else wanted.get(key)) == value
        for key, value in one.settings.items()
    )


def with_drafter(wanted: Mapping[str, Any], target: ModelFacts | None) -> Mapping[str, Any]:
    """The configuration with the target's installed drafter filled in, if it names none and some are installed."""
    if several := drafters_of(wanted):  # what is left open of one of them is settled for all together
        return {**wanted, "drafters": [_with_model(part, _drafter_for(part, target)) for part in several]}
    one, tokens = _drafter_for(wanted, target), wanted.get("num_speculative_tokens")
    adapts = tokens == "auto" or (tokens is None and not any(wanted.get(key) for key in SAY_HOW_MANY))
    found = _with_model(wanted, one)
    if one is None or not adapts:
        return found
    return {**found, "num_speculative_tokens": one.tokens, "adaptive": truth(wanted.get("adaptive")) is not False}


def _with_model(wanted: Mapping[str, Any], one: Installed | None) -> Mapping[str, Any]:
    return wanted if one is None else {**wanted, "model": str(one.directory)}


def _drafter_for(wanted: Mapping[str, Any], target: ModelFacts | None) -> Installed | None:
    """The installed drafter that fits the target; None if none is needed, or none is installed."""
    choices = offered(wanted)
    if not choices:
        return None
    mark = fingerprint(target.directory) if target is not None and target.directory is not None else ""
    fitting = next((one for one in choices if one.fingerprint == mark), None)
    if fitting is not None:
        return fitting
    known = ", ".join(sorted({f"{one.target} ({one.package})" for one in choices}))
    raise ConfigError(
        f"speculative_config.model is missing, and no installed {choices[0].method} drafter was trained for this "
        f"target; there are some for {known}. Name a drafter, or train one: `augury train {choices[0].method}`."
    )


def check_target(drafter: ModelFacts | None, target: ModelFacts | None) -> None:
    """Refuse a drafter that says it was trained for another target: little of what it drafts would be accepted."""
    meant = drafter.raw.get(MARK) if drafter is not None else None
    if not isinstance(meant, dict) or drafter is None or target is None or target.directory is None:
        return
    mark = fingerprint(target.directory)
    if meant.get("fingerprint") not in (None, mark):
        raise ConfigError(
            f"speculative_config.model={drafter.name!r} was trained for {meant.get('name')} "
            f"({meant['fingerprint']}), and this target is {name_of(target.directory)} ({mark}); give the drafter of "
            f"this target, train one with `augury train`, or remove {MARK} from its config.json to try it all the same."
        )
