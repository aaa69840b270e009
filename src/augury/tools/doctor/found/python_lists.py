"""Commands that a Python program puts together as lists for subprocess: `["vllm", "serve", MODEL, ...]`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator

from augury.tools.doctor.found.allowance import spend
from augury.tools.doctor.found.command import FoundCommand, in_words
from augury.tools.doctor.found.mapped import Mapped, unescaped
from augury.tools.doctor.found.shell_words import Word

ARGUMENT = re.compile(r"(-sc|--speculative-config|--spec-(method|model|tokens))(?![\w-])")
LITERAL = re.compile(r"""[rR]?(\"\"\"|'''|"|')""")
Place = Callable[[ast.expr], tuple[int, int]]


def listed(tree: ast.AST, source: Mapped, place: Place) -> list[FoundCommand]:
    """Every command that is written as a list, with what is appended to the list later."""
    found = []
    for words in _lists(tree, source, place):
        here = in_words(words, {})
        computed = any(word.text.startswith("{") and len(set(word.body.at)) == 2 for word in words)
        if not here and any(ARGUMENT.match(word.text) for word in words):
            here = [FoundCommand("vllm serve", words, words[0].start, words[0].end)]
        for one in here:
            one.computed = computed
        found += here
    return found


def _lists(tree: ast.AST, source: Mapped, place: Place) -> Iterator[list[Word]]:
    named: dict[str, list[Word]] = {}
    taken: set[int] = set()
    for node in ast.walk(tree):
        name, value = _added(node)
        if name and isinstance(value, ast.List):
            taken.add(id(value))
            words = _words(value, source, place)
            named[name] = words if isinstance(node, ast.Assign) else [*named.get(name, []), *words]
    yield from named.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.List) and id(node) not in taken:
            yield _words(node, source, place)


def _added(node: ast.AST) -> tuple[str, ast.expr | None]:
    """The name whose list this node assigns or extends, and the value; an empty name and None for other nodes."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return getattr(node.targets[0], "id", ""), node.value
    if isinstance(node, ast.AugAssign):
        return getattr(node.target, "id", ""), node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "extend" and node.args:
        return getattr(node.func.value, "id", ""), node.args[0]
    return "", None


def _words(value: ast.List, source: Mapped, place: Place) -> list[Word]:
    return [_word(item, source, place) for item in value.elts if not isinstance(item, ast.Starred)]


def _word(item: ast.expr, source: Mapped, place: Place) -> Word:
    """A literal text as it is; any other expression as a placeholder in the form of a shell variable."""
    start, end = place(item)
    spend(20 + end - start)
    if isinstance(item, ast.Constant) and isinstance(item.value, str):
        exact = _exact(item.value, source, start, end)
        return exact or _flat(item.value, source, start, end, False)
    if isinstance(item, ast.Call) and item.args and getattr(item.func, "attr", "") == "dumps":
        try:
            return _flat(json.dumps(ast.literal_eval(item.args[0])), source, start, end, False)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
    if isinstance(item, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else "${…}" for part in item.values]
        return _flat("".join(parts), source, start, end, True)
    return _flat(f"${{{ast.unparse(item)[:40]}}}", source, start, end, True)


def _exact(value: str, source: Mapped, start: int, end: int) -> Word | None:
    """The literal mapped letter by letter; None unless it is one piece whose escapes are also JSON's."""
    opening = LITERAL.match(source.text, start, end)
    quote = opening[1] if opening else ""
    inner = source.part(opening.end(), end - len(quote)) if opening else source
    body = inner if inner.text == value else unescaped(inner)
    if opening is None or body.text != value:
        return None
    body = body.within(lambda text: text.replace("\\", "\\\\").replace(quote[0], "\\" + quote[0]))
    return Word(body, " " * len(value), *source.place(opening.end(), end - len(quote)), False)


def _flat(value: str, source: Mapped, start: int, end: int, expands: bool) -> Word:
    """A text whose letters all map to the whole expression, so that nothing inside it can be edited."""
    first, last = source.place(start, end)
    body = Mapped(value, (first,) * len(value) + (last,), source.layers, (last,) * len(value))
    return Word(body, " " * len(value), first, last, False, expands)
