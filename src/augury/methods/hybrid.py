"""The card of `hybrid`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from augury.methods.errors import ConfigError
from augury.methods.spec import NEVER, Case, Method

EXAMPLE = '{"method": "hybrid", "drafters": [{"method": "ngram", ...}, {"method": "eagle3", ...}]}'


def as_one(given: Any) -> Any:
    """A list of configurations is a hybrid of them; anything else stays as it is."""
    listed = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    if listed and all(isinstance(one, Mapping) for one in given):
        return {"method": HYBRID.name, "drafters": list(given)}
    return given


def drafters_of(given: Any) -> list[Mapping[str, Any]]:
    """The drafters that a configuration lists, as far as they can be read."""
    listed = given.get("drafters") if isinstance(given, Mapping) else None
    return [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, Sequence) else []


def _listed(case: Case) -> None:
    if not case.keys.get("drafters"):
        raise ConfigError(f"speculative_config.drafters is missing: name at least two, as in {EXAMPLE}.")


HYBRID = Method(
    name="hybrid",
    help="Several drafters together: look-ups lead where the text repeats, a model drafts elsewhere.",
    drafter="augury.drafters.hybrid:HybridDrafter",
    keys=("drafters",),
    check_target=_listed,
    vllm_since=NEVER,
)
