"""Which SamplingParams(...) of a program go to which engine, as far as the source shows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

PARAMETERS = "SamplingParams"


def called(call: ast.Call) -> str:
    """The last part of the called name, such as `LLM` of `vllm.LLM(...)`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def requests(tree: ast.AST, values: dict[str, ast.expr], engines: list[ast.Call]) -> list[list[ast.Call]]:
    """For each engine the SamplingParams calls handed to it; a call that cannot be attributed goes to every engine."""
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
    """The arguments of a call, and the elements of those that are lists or tuples."""
    for value in [*call.args, *(keyword.value for keyword in call.keywords)]:
        found = _meant(value, values)
        yield found
        if isinstance(found, ast.List | ast.Tuple):
            yield from (_meant(inner, values) for inner in found.elts)
