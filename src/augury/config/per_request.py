"""What one request may say about speculation: `extra_body={"speculative": {...}}`, offline in `extra_args`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from augury.config.errors import ConfigError, shown
from augury.config.speculative import SpeculativeConfig

KEY = "speculative"
NOT_LOADED = "the engine was started without speculative_config"
SWITCHED_OFF = "the request switched it off"


class SpecOptions(NamedTuple):
    """One request's speculation: how much it may draft, and whether it wants every step shown."""

    max_draft: int | None = None  # None: as much as the engine does
    trace: bool = False
    off: str | None = None  # why it runs without speculation, if it does

    def at_most(self, nodes: int) -> int:
        """The engine's draft budget, capped at the request's own."""
        return nodes if self.max_draft is None else min(nodes, self.max_draft)


def read_spec_options(extra_args: Mapping[str, Any] | None, loaded: SpeculativeConfig | None) -> SpecOptions:
    """Read the options in a request's extra arguments; ConfigError if they go beyond what the engine has loaded."""
    given = (extra_args or {}).get(KEY)
    without = SpecOptions(off=NOT_LOADED) if loaded is None else SpecOptions()
    if given is None:
        return without
    if not isinstance(given, Mapping):
        raise ConfigError(f'{KEY} must be an object such as {{"enabled": false}}, got {shown(given)}.')
    for name in given:
        if name not in ("enabled", "num_speculative_tokens", "method", "trace"):
            raise ConfigError(f"{KEY}.{name} is unknown; use 'enabled', 'num_speculative_tokens', 'method' or 'trace'.")
    for name in ("enabled", "trace"):
        if not isinstance(given.get(name, False), bool):
            raise ConfigError(f"{KEY}.{name} must be true or false, got {shown(given[name])}.")
    _check_method(given, loaded)
    most = _most(given, loaded)
    trace = given.get("trace", False)
    if loaded is None:
        return without._replace(trace=trace, max_draft=most)  # a prediction drafts without a method, too
    if most == 0:
        return SpecOptions(0, trace, SWITCHED_OFF)
    # The engine's own number is not a bound: with a tree it counts levels, while a bound counts nodes.
    return SpecOptions(most if most != loaded.num_speculative_tokens else None, trace)


def _check_method(given: Mapping[str, Any], loaded: SpeculativeConfig | None) -> None:
    method = given.get("method")
    if loaded is None and (method is not None or given.get("enabled") is True):
        name = "method" if method is not None else "enabled"
        raise ConfigError(f"{KEY}.{name}={shown(given[name])}: {NOT_LOADED}; leave it out.")
    if loaded is not None and method not in (None, loaded.method):
        raise ConfigError(f"{KEY}.method={shown(method)} is not loaded; the engine runs {loaded.method!r}.")


def _most(given: Mapping[str, Any], loaded: SpeculativeConfig | None) -> int | None:
    """Most tokens to draft, or None where the request does not say."""
    k = loaded.num_speculative_tokens if loaded else 0
    most = given.get("num_speculative_tokens")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= k):
        raise ConfigError(
            f"{KEY}.num_speculative_tokens must be an integer from 0 to {k}, what the engine has loaded; "
            f"got {shown(most)}."
        )
    return 0 if given.get("enabled") is False else most
