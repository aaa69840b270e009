"""Which SamplingParams(...) of a program go to which engine, as far as its text tells."""

from __future__ import annotations

import ast
from collections.abc import Iterator

PARAMETERS = "SamplingParams"


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def requests(tree: ast.AST, values: dict[str, ast.expr], engines: list[ast.Call]) -> list[list[ast.Call]]:
    """For each engine the parameters it is handed; those of which it cannot be told go to every engine."""
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called(node) == PARAMETERS]
    users: dict[int, set[int]] = {id(call): set() for call in made}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            engine = _meant(node.func.value, values)
            if any(engine is one for one in engines):
                for given in _handed(node, values):
                    users.get(id(given), set()).add(id(engine))
    return [[call for call in made if not users[id(call)] or id(engine) in users[id(call)]] for engine in engines]


def _meant(value: ast.expr, values: dict[str, ast.expr]) -> ast.expr:
    return values.get(value.id, value) if isinstance(value, ast.Name) else value


def _handed(call: ast.Call, values: dict[str, ast.expr]) -> Iterator[ast.expr]:
    """What a call is given, and what stands in the lists it is given."""
    for value in [*call.args, *(keyword.value for keyword in call.keywords)]:
        found = _meant(value, values)
        yield found
        if isinstance(found, ast.List | ast.Tuple):
            yield from (_meant(inner, values) for inner in found.elts)
