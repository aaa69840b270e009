"""YAML mappings as a program sees them: `<<` is merged in, and so is the service that a compose service extends."""

from __future__ import annotations

import yaml

from augury.tools.doctor.found.allowance import spend

Pair = tuple[yaml.Node, yaml.Node]


def pairs(mapping: yaml.MappingNode, within: frozenset[int] = frozenset()) -> list[Pair]:
    """Keys and values, merged ones first; earlier merges and the mapping's own keys take precedence."""
    own = [pair for pair in mapping.value if not _is_merge(pair[0])]
    merges = [value for key, value in mapping.value if _is_merge(key)]
    if not merges or id(mapping) in within:  # a mapping that merges itself would recurse forever
        return own
    sources = [one for value in merges for one in (value.value if isinstance(value, yaml.SequenceNode) else [value])]
    found: list[Pair] = []
    names = {key.value for key, _ in own if isinstance(key, yaml.ScalarNode)}
    for one in sources:
        taken = pairs(one, within | {id(mapping)}) if isinstance(one, yaml.MappingNode) else []
        spend(20 + len(taken))  # merges of merges double
        found += [pair for pair in taken if not isinstance(pair[0], yaml.ScalarNode) or pair[0].value not in names]
        names |= {key.value for key, _ in taken if isinstance(key, yaml.ScalarNode)}
    return found + own


def named(mapping: yaml.MappingNode) -> dict[str, yaml.Node]:
    """The values of a mapping by key, merges included."""
    return {key.value: value for key, value in pairs(mapping) if isinstance(key, yaml.ScalarNode)}


def has_merges(mapping: yaml.MappingNode) -> bool:
    """Whether some of its keys are written elsewhere."""
    return any(_is_merge(key) for key, _ in mapping.value)


def _is_merge(key: yaml.Node) -> bool:
    return key.tag == "tag:yaml.org,2002:merge"


def services(root: yaml.Node) -> dict[str, yaml.Node]:
    """A compose file's services by name; none in any other file."""
    parts = named(root) if isinstance(root, yaml.MappingNode) else {}
    found = parts.get("services")
    return named(found) if isinstance(found, yaml.MappingNode) and "apiVersion" not in parts else {}


def extended(
    parts: dict[str, yaml.Node], others: dict[str, yaml.Node], within: frozenset[str] = frozenset()
) -> dict[str, yaml.Node]:
    """A service's keys on top of those of the service in the same file that it extends."""
    link = parts.get("extends")
    if isinstance(link, yaml.MappingNode):
        says = named(link)
        link = says.get("service") if "file" not in says else None
    name = link.value if isinstance(link, yaml.ScalarNode) else ""
    base = others.get(name)
    if not isinstance(base, yaml.MappingNode) or name in within:
        return parts
    return {**extended(named(base), others, within | {name}), **parts}


def templates(root: yaml.Node) -> set[int]:
    """The ids of compose's top-level `x-` mappings, which are not run themselves; services that merge them are."""
    parts = named(root) if services(root) and isinstance(root, yaml.MappingNode) else {}
    return {id(node) for name, node in parts.items() if name.startswith("x-")}
