"""Replays recorded conversations through model-free drafters, with neither a model nor a GPU.

These methods draft deterministically, and the recording is the target's output; so accepting the draft tokens that
match the recording is exactly what the engine's acceptance rule does, at any temperature.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np

from augury.config.errors import ConfigError
from augury.config.resolve import resolve
from augury.config.speculative import SpeculativeConfig
from augury.config.surfaces import from_json
from augury.methods.registry import LOOK_UPS, METHODS
from augury.tools.replay.drafters import NO_LIMIT, walker_for
from augury.tools.replay.tokens import Script

COMMON_KEYS = ("num_speculative_tokens",)


@dataclass(slots=True)
class Log:
    """The responses replayed so far, one element each in the lists; the same for every method."""

    turns: list[int] = field(default_factory=list)  # the response's number in its conversation, from 1
    labels: list[str] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)  # tokens that take a step in plain decoding: all but the first
    conversations: int = 0
    without_response: int = 0
    resent: int = 0  # responses of earlier records, resent as part of a prompt
    cut: int = 0  # responses that max_model_len truncated or left out
    prompt_tokens: int = 0  # each turn's new text only
    response_tokens: int = 0
    tenants: set[str] = field(default_factory=set)

    @property
    def tokens(self) -> int:
        """All tokens read."""
        return self.prompt_tokens + self.response_tokens


class ReplayedConfig:
    """One configuration and its counts."""

    def __init__(self, config: SpeculativeConfig, limit: int = NO_LIMIT) -> None:
        """Set up the configuration's own index, and warm up."""
        self.config = config
        self.walker = walker_for(config, limit)
        self.curve = np.zeros((4, self.walker.most + 1), np.int64)
        self.seconds = 0.0  # spent replaying, including indexing prompts
        self._lines: list[np.ndarray] = []
        self._warm_up()

    @property
    def lines(self) -> np.ndarray:
        """Counts of every response, [responses, 4]: steps, drafts, drafted, accepted."""
        return np.concatenate([np.zeros((0, 4), np.int64), *self._lines])

    def walk(self, script: Script) -> None:
        """Replay a conversation and record its counts."""
        before = perf_counter()
        self._lines.append(self.walker.walk(script, self.curve))
        self.seconds += perf_counter() - before

    def _warm_up(self) -> None:
        """Trigger JIT compilation before time is measured."""
        text = np.array([1, 2, 3, 1, 2, 3, 1, 2], np.int64)
        fresh = walker_for(self.config)
        fresh.walk(Script(text, [(1, 8)], "", ""), np.zeros_like(self.curve))


class Replay:
    """Several configurations over the same conversations."""

    def __init__(self, configs: Iterable[SpeculativeConfig], max_model_len: int | None = None) -> None:
        """Set up every configuration; `max_model_len` bounds prompt and response together, as in an engine."""
        self.limit = max_model_len or NO_LIMIT
        self.contenders = [ReplayedConfig(config, self.limit) for config in configs]
        self.log = Log()

    def feed(self, script: Script) -> None:
        """Replay a conversation with every configuration."""
        script = self._within_limit(script)
        log, spans = self.log, script.spans
        log.conversations += 1
        log.without_response += not spans
        log.tenants.add(script.tenant)
        response = sum(stop - start for start, stop in spans)
        log.response_tokens += response
        log.prompt_tokens += max(0, len(script.text) - script.resent_tokens - response)
        log.resent += script.resent
        if not spans:
            return
        log.turns += range(script.resent + 1, script.resent + len(spans) + 1)
        log.labels += [script.label] * len(spans)
        log.emitted += [stop - start - 1 for start, stop in spans]
        for contender in self.contenders:
            contender.walk(script)

    def _within_limit(self, script: Script) -> Script:
        if len(script.text) <= self.limit:
            return script
        kept = [(start, min(stop, self.limit)) for start, stop in script.spans if start < self.limit]
        self.log.cut += sum(stop > self.limit for _, stop in script.spans)
        return replace(script, text=script.text[: self.limit], spans=kept)


def read_configs(methods: Iterable[str], written: Iterable[str]) -> list[dict[str, Any]]:
    """Configurations by method name (with defaults) and as JSON; if none is given, every look-up method's default."""
    chosen = [_default(name) for name in methods] + [one for text in written for one in _written(text)]
    return chosen or [_default(name) for name, look_up in LOOK_UPS.items() if not look_up.twin_of]


def _written(text: str) -> list[dict[str, Any]]:
    """Parse one configuration or a list of them from JSON."""
    if not text.lstrip().startswith("["):
        return [from_json(text)]
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError("--speculative-config begins as a list but is not JSON; write '[{...}, {...}]'.") from None
    return [from_json(json.dumps(one)) for one in listed]


def _default(name: str) -> dict[str, Any]:
    if name not in LOOK_UPS:
        raise ConfigError(f"--method {name}: {_why_not(name)}")
    tokens = {} if LOOK_UPS[name].tokens is None else {"num_speculative_tokens": LOOK_UPS[name].tokens}
    return {"method": name, **tokens, **LOOK_UPS[name].starts[0]}


def _why_not(method: str) -> str:
    known = ", ".join(LOOK_UPS)
    what = "it needs a model to draft" if method in METHODS else "there is no such method"
    return f"{what}; what can be replayed without one: {known}."


def read_grid(given: Iterable[str]) -> dict[str, list[Any]]:
    """Parse `key=v1,v2` into the values to try by key."""
    grid: dict[str, list[Any]] = {}
    for text in given:
        key, sign, values = text.partition("=")
        key = key.strip().replace("-", "_")
        if not sign or not key or not values.strip():
            raise ConfigError(f"--grid {text}: write a key and its values, for example num_speculative_tokens=4,8.")
        if key in grid:
            raise ConfigError(f"--grid {key} is given twice; write all values after one.")
        grid[key] = [_value(value.strip()) for value in values.split(",")]
    return grid


def _value(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "null": None}.get(text, text)


def expand(
    given: Iterable[Mapping[str, Any]], grid: Mapping[str, list[Any]]
) -> tuple[list[SpeculativeConfig], list[str]]:
    """Every configuration with every combination of the grid values it reads, and an error for each one refused.

    A configuration that reads none of the grid's keys raises the error instead.
    """
    configs: dict[str, SpeculativeConfig] = {}
    refused: dict[str, None] = {}
    read: set[str] = set()
    for one in given:
        keys = [key for key in grid if _reads(one, key)]
        read.update(keys)
        for values in product(*(grid[key] for key in keys)):
            try:
                parsed = _parse({**one, **dict(zip(keys, values, strict=True))})
            except ConfigError as error:
                if not keys:
                    raise
                refused[str(error)] = None
                continue
            configs.setdefault(parsed.compute_hash(), parsed)
    if unread := [key for key in grid if key not in read]:
        raise ConfigError(f"--grid {unread[0]}: none of the methods replayed reads it.")
    if not configs:
        raise ConfigError(f"no combination of --grid is valid: {next(iter(refused))}")
    return list(configs.values()), list(refused)


def _reads(given: Mapping[str, Any], key: str) -> bool:
    card = METHODS.get(str(given.get("method")))
    return key in COMMON_KEYS or (card is not None and key in card.keys)


def _parse(given: Mapping[str, Any]) -> SpeculativeConfig:
    config = resolve(given)
    assert config is not None
    if config.method not in LOOK_UPS:
        raise ConfigError(f"speculative_config.method={config.method!r}: {_why_not(config.method)}")
    if config.speculative_token_tree is not None:
        raise ConfigError("speculative_config.speculative_token_tree: suffix grows trees itself; write 'tree' instead.")
    if not config.lossless:
        raise ConfigError(
            f"speculative_config.rejection_sample_method={config.rejection_sample_method!r} changes the text, so a "
            "recording cannot say what it would accept; leave it out."
        )
    return config
