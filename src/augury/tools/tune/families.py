"""What a tuner tries: families of configurations that one loaded engine can run, with one arm per K."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from augury.config.errors import ConfigError
from augury.config.resolve import resolve
from augury.methods.registry import ALIASES, LOOK_UPS, METHODS

PLAIN = "plain"
TOKENS = (1, 2, 3, 4, 6, 8)
NODES = (4, 8, 16, 32)  # of a tree
FIRST = [name for name, look_up in LOOK_UPS.items() if not look_up.twin_of]  # methods that need only the prompts


class Arm(NamedTuple):
    """One configuration to race: a family and its K; plain decoding is K = 0."""

    family: str
    k: int

    @property
    def name(self) -> str:
        """The name shown in tables."""
        return f"{self.family} K={self.k}" if self.k else self.family


PLAIN_ARM = Arm(PLAIN, 0)


@dataclass(frozen=True, slots=True)
class ConfigFamily:
    """A configuration without K, and the values of K to try."""

    name: str
    speculative: Mapping[str, Any]  # without K
    ks: tuple[int, ...]  # tokens of a chain, nodes of a tree

    @property
    def arms(self) -> list[Arm]:
        """One arm per K."""
        return [Arm(self.name, k) for k in self.ks]

    @property
    def tree(self) -> bool:
        """Whether K counts tree nodes; requests can only set tokens, so each tree size needs its own engine."""
        return "tree" in self.speculative

    def at(self, k: int) -> dict[str, Any]:
        """The complete configuration that drafts `k`."""
        spec = dict(self.speculative)
        return spec | ({"tree": {**spec["tree"], "max_nodes": k}} if self.tree else {"num_speculative_tokens": k})


def families_of(
    methods: Sequence[str], written: Sequence[Mapping[str, Any]], ks: Sequence[int] = (), tree: bool = False
) -> list[ConfigFamily]:
    """The families of methods by name and of written configurations; `ks` replaces the usual values of K.

    A K in a configuration is the largest to try, since a head drafts no more than it was made for. With `tree`, every
    family that can draft trees is tried both ways.
    """
    specs: list[dict[str, Any]] = []
    for name in methods or (() if written else FIRST):
        specs += _look_up(name)
    specs += [dict(spec) for spec in written]
    families: dict[str, ConfigFamily] = {}
    for spec in specs:
        for family in _family(spec, ks, tree):
            families.setdefault(family.name, family)
    return list(families.values())


def _look_up(name: str) -> list[dict[str, Any]]:
    name = ALIASES.get(name, name)
    if name in LOOK_UPS:
        return [{"method": name, **start} for start in LOOK_UPS[name].starts]
    if name in METHODS:
        raise ConfigError(f'--methods {name}: it needs a drafter; give -sc \'{{"method": "{name}", "model": "DIR"}}\'.')
    raise ConfigError(f"--methods {name}: unknown; choose from {', '.join(LOOK_UPS)}, or give a drafter with -sc.")


def _family(spec: dict[str, Any], ks: Sequence[int], tree: bool) -> Iterable[ConfigFamily]:
    """A configuration's family and, if wanted and possible, its tree family."""
    parsed = resolve(spec if "num_speculative_tokens" in spec else spec | {"num_speculative_tokens": 1})
    if parsed is None:
        raise ConfigError("-sc is empty; write a configuration, plain decoding is always tried.")
    for key in ("speculative_token_tree", "num_speculative_tokens_per_batch_size"):
        if spec.get(key) is not None:
            raise ConfigError(f"-sc {key}: tuning finds it; leave it out.")
    if parsed.card.saves_states:
        raise ConfigError(f"-sc method {parsed.method!r} drafts nothing; there is nothing to tune.")
    if "tree" in spec:
        yield ConfigFamily(_name(spec), spec, _chosen(ks, NODES, _most_nodes(spec)))
        return
    most = spec.pop("num_speculative_tokens", None)
    yield ConfigFamily(_name(spec), spec, _chosen(ks, TOKENS, most))
    if tree and "tree" in parsed.card.keys:
        grown = spec | {"num_speculative_tokens": most or max(TOKENS), "tree": {"top_k": 3}}
        yield ConfigFamily(_name(grown), grown, _chosen((), NODES, None))


def _most_nodes(spec: Mapping[str, Any]) -> int | None:
    nodes = spec["tree"].get("max_nodes") if isinstance(spec["tree"], Mapping) else None
    return nodes if isinstance(nodes, int) else None


def _chosen(asked: Sequence[int], usual: Sequence[int], most: int | None) -> tuple[int, ...]:
    if asked:
        if over := [k for k in asked if most is not None and k > most]:
            raise ConfigError(f"--tokens {over[0]}: the configuration says {most} at most.")
        return tuple(sorted(set(asked)))
    if most is None:
        return tuple(usual)
    return tuple(sorted({k for k in usual if k < most} | {most}))


def _name(spec: Mapping[str, Any]) -> str:
    """A short name, distinct for different settings."""
    method = str(spec.get("method") or "drafter")
    words = []
    if "prompt_lookup_min" in spec or "prompt_lookup_max" in spec:
        words.append(f"{spec.get('prompt_lookup_min', '')}-{spec.get('prompt_lookup_max', '')}")
    if model := spec.get("model"):
        words.append(str(model).rstrip("/").rpartition("/")[2])
    if "tree" in spec:
        words.append("tree")
    known = {"method", "model", "tree", "prompt_lookup_min", "prompt_lookup_max", "num_speculative_tokens"}
    words += [f"{key.removeprefix('suffix_decoding_')}={spec[key]}" for key in sorted(spec) if key not in known]
    return " ".join([method, *words])
