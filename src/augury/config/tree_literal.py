"""speculative_token_tree: a draft tree written as a list of paths, each the child numbers on the way down."""

from __future__ import annotations

import ast

from augury.config.errors import ConfigError, shown
from augury.methods.spec import MAX_NODES

Path = tuple[int, ...]


def read_tree(text: str) -> list[Path]:
    """The paths, level by level, so that a node's parent comes before it."""
    name = f"speculative_config.speculative_token_tree={shown(text)}"
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        raise ConfigError(f"{name} is not a list of tuples; write for example '[(0,), (0, 0), (1,)]'.") from None
    if not isinstance(found, list) or not found or not all(_is_path(path) for path in found):
        raise ConfigError(f"{name} must be a list of tuples of child numbers, such as '[(0,), (0, 0), (1,)]'.")
    paths = sorted(set(found), key=lambda path: (len(path), path))
    if len(paths) < len(found):
        raise ConfigError(f"{name} names a node twice; remove one.")
    if len(paths) > MAX_NODES:
        raise ConfigError(f"{name} has {len(paths)} nodes; the most is {MAX_NODES}.")
    known = set(paths)
    orphan = next((path for path in paths if len(path) > 1 and path[:-1] not in known), None)
    if orphan:
        raise ConfigError(f"{name}: {orphan} has the parent {orphan[:-1]}, which is not in the list; add that.")
    return paths


def _is_path(path: object) -> bool:
    return isinstance(path, tuple) and len(path) > 0 and all(type(i) is int and i >= 0 for i in path)


def parents_of(paths: list[Path]) -> list[int]:
    """The number of every node's parent, -1 for the root."""
    number = {path: i for i, path in enumerate(paths)}
    return [number.get(path[:-1], -1) for path in paths]
