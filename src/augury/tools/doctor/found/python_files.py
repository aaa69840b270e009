"""Engines built in Python: `LLM(...)` and the engine arguments, with the position of every keyword."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

from augury.tools.doctor.found.allowance import spend
from augury.tools.doctor.found.command import FoundCommand
from augury.tools.doctor.found.mapped import Mapped
from augury.tools.doctor.found.places import DEEPEST, Member, Node
from augury.tools.doctor.found.python_lists import listed
from augury.tools.doctor.found.requests import called, requests
from augury.tools.doctor.found.shell_words import Word

BUILDERS = ("LLM", "EngineArgs", "AsyncEngineArgs")
MAKERS = re.compile(r"^[ \t]*(?:from|import)[ \t]+(vllm|augury)\b", re.M)
LISTED = re.compile(r"[\"']vllm[\"']|vllm\.entrypoints|[\"'](?:-sc|--speculative-config|--spec-)")
JSON_WORDS = {"true": "True", "false": "False", "null": "None"}
WRITTEN = re.compile(r'"(?:[^"\\]|\\.)*"|\b(?:true|false|null)\b')
CHANGES = ("update", "pop", "setdefault", "clear", "popitem")
NAMED_AT_LEAST = ("kv_transfer_config",)  # arguments whose presence alone matters
UNKNOWN = object()  # a value that is known only at run time


def in_python(source: Mapped) -> list[FoundCommand]:
    """Every engine that a program builds, or starts by a list of words; none if the text is not Python."""
    maker = MAKERS.search(source.text)
    if maker is None and not LISTED.search(source.text):
        return []
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    reader = _Reader(source, *_names(tree))
    engines = list(_builders(tree)) if maker is not None else []
    asked = requests(tree, reader.values, engines)
    built = [reader.found(call, maker[1], sampling) for call, sampling in zip(engines, asked, strict=True) if maker]
    return built + (listed(tree, source, reader.place) if LISTED.search(source.text) else [])


def _names(tree: ast.AST) -> tuple[dict[str, ast.expr], set[str]]:
    """Names that are assigned only once in the file, with their values, and names whose value is mutated."""
    values: dict[str, ast.expr] = {}
    bound: Counter[str] = Counter()
    changed: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound[node.id] += 1
        elif isinstance(node, ast.arg):
            bound[node.arg] += 1
        changed |= _changed_by(node)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = node.value
    return {name: value for name, value in values.items() if bound[name] == 1}, changed


def _changed_by(node: ast.AST) -> set[str]:
    """The name whose value this node mutates, by an assignment into it or by one of its mutating methods."""
    if not isinstance(node, ast.Subscript | ast.Attribute) or not isinstance(node.value, ast.Name):
        return set()
    put = not isinstance(node.ctx, ast.Load) or (isinstance(node, ast.Attribute) and node.attr in CHANGES)
    return {node.value.id} if put else set()


def _is_dict(value: ast.expr) -> bool:
    return isinstance(value, ast.Dict) or (isinstance(value, ast.Call) and getattr(value.func, "id", "") == "dict")


def _builders(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in BUILDERS:
            yield node


def in_python_words(text: str) -> str:
    """JSON rewritten as Python literals."""
    return WRITTEN.sub(lambda found: JSON_WORDS.get(found[0], found[0]), text)


class _Reader:
    def __init__(self, source: Mapped, values: dict[str, ast.expr], changed: set[str]) -> None:
        self.lines = source.text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        body = source.within(in_python_words)
        self.word = Word(body, "", 0, len(source.text), False)
        self.values, self.changed = values, changed

    def found(self, call: ast.Call, maker: str, sampling: list[ast.Call]) -> FoundCommand:
        """One engine's call as settings, with the SamplingParams of its requests."""
        settings = self._call(call)
        if call.args:
            first = self._node(call.args[0])
            settings.members.insert(0, Member("model", first.start, first.start, first))
        settings.value = {member.name: member.node.value for member in settings.members}
        place = self.word.body.place(settings.start, settings.end)
        asked = [self._request(one) for one in sampling]
        return FoundCommand(f"{maker} LLM", [], *place, settings=settings, sampling=asked)

    def _request(self, call: ast.Call) -> Node:
        """The parameters of requests; one that is an object built there counts as set, whatever it holds."""
        node = Node(self.word, {}, *self.place(call), style="call")
        for keyword in call.keywords:
            written = self.values.get(keyword.value.id) if isinstance(keyword.value, ast.Name) else keyword.value
            value = self._node(keyword.value)
            if isinstance(written, ast.Call | ast.DictComp) or (isinstance(written, ast.Dict) and written.keys):
                value.value = True
            if keyword.arg is not None and value.value is not UNKNOWN:
                start = self._offset(keyword.lineno, keyword.col_offset)
                value.start, value.end = self.place(keyword.value)
                node.members.append(Member(keyword.arg, start, start + len(keyword.arg), value))
        return node

    def _call(self, call: ast.Call, depth: int = 0) -> Node:
        """Keywords as members; a keyword whose value is known only at run time is left out and named in `untold`."""
        node = Node(self.word, {}, *self.place(call), style="call")
        for keyword in call.keywords:
            value = self._node(keyword.value, depth + 1)
            if keyword.arg in NAMED_AT_LEAST and value.value is UNKNOWN and not depth:
                value.value = {}  # it is there, whatever it holds
            if keyword.arg is not None and value.value is not UNKNOWN and not (depth and value.untold):
                start = self._offset(keyword.lineno, keyword.col_offset)
                node.members.append(Member(keyword.arg, start, start + len(keyword.arg), value))
            else:
                node.untold = keyword.arg or f"**{ast.unparse(keyword.value)}"
        node.value = {member.name: member.node.value for member in node.members}
        return node

    def _node(self, value: ast.expr, depth: int = 0) -> Node:
        node = Node(self.word, UNKNOWN, *self.place(value))
        spend(100)  # a name is read again at every use
        if depth > DEEPEST:
            return node
        if isinstance(value, ast.Name) and value.id in self.values:
            found = self._node(self.values[value.id], depth + 1)
            found.untold = found.untold or (value.id if value.id in self.changed else "")
            return found
        if isinstance(value, ast.Dict):
            return self._dict(value, node, depth)
        if isinstance(value, ast.Call) and _is_dict(value) and not value.args:
            return self._call(value, depth)
        node.value = _literal(value)
        return node

    def _dict(self, value: ast.Dict, node: Node, depth: int) -> Node:
        for key, inner in zip(value.keys, value.values, strict=True):
            name, found = _literal(key) if key is not None else UNKNOWN, self._node(inner, depth + 1)
            if isinstance(name, str) and key is not None and found.value is not UNKNOWN and not found.untold:
                node.members.append(Member(name, *self.place(key), found))
            else:
                node.untold = name if isinstance(name, str) else f"**{ast.unparse(inner)}"
        node.value = {member.name: member.node.value for member in node.members}
        return node

    def place(self, node: ast.expr) -> tuple[int, int]:
        """The start and end of an expression in the text."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        """The offset of a line and column in letters; Python's AST counts columns in bytes."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        if text.isascii():
            return self.starts[line - 1] + min(column, len(text))
        spend(column // 100)
        return self.starts[line - 1] + len(text.encode()[:column].decode(errors="replace"))


def _literal(value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return UNKNOWN
