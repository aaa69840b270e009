"""Llama 3.2 and 4, ToolACE: [f(city="Bern", days=3), g()], the whole answer a list of calls in Python's notation."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from typing import Any

from augury.serve.parsers.reader import Held, Reader, Sink, Steps, twice
from augury.serve.parsers.typed import as_json

START, END = "<|python_start|>", "<|python_end|>"
INSIDE = re.compile(r"[^'\"()\[\]{}]*")  # of a call, outside strings and brackets
QUOTED = {"'": re.compile(r"[^'\\]*"), '"': re.compile(r'[^"\\]*')}
NAME = re.compile(r"[A-Za-z0-9_.]*")
TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"""
    r"""|(?P<word>[A-Za-z_][\w.]*)|(?P<sign>[\[\](){},:=]))""",
    re.DOTALL,
)
WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
DEEPEST = 64
CLOSES = {"[": "]", "(": ")", "{": "}"}


class NoCall(ValueError):
    """A text that is not a call with literal arguments."""


def pythonic(reader: Reader) -> Steps[None]:
    """A list of calls at the beginning of the answer; each is emitted when it is complete."""
    held = Held()
    yield from reader.space(held.add, held)
    if (yield from reader.peek()) == "<":
        yield from reader.literal(START, held.add)
    if (yield from reader.literal("[", held.add)):
        while (yield from _call(reader, held)):
            held = Held()
            yield from reader.space()
            if not (yield from reader.literal(",")):
                yield from reader.literal("]")
                yield from reader.space()
                yield from reader.literal(END)
                break
    reader.content(held.text)
    yield from reader.rest(reader.content)


def _call(reader: Reader, held: Held) -> Steps[bool]:
    """Read one call; returns whether it is one. If not, `held` has what was read."""
    own = Held()
    yield from reader.space(held.add, held)
    yield from reader.run(NAME, twice(held, own), held)
    if (yield from reader.peek()) != "(" or not (yield from _bracket(reader, held, own)):
        return False
    try:
        name, arguments = _read(own.text)
    except NoCall:
        return False
    reader.call(name)
    reader.arguments(as_json(arguments))
    return True


def _bracket(reader: Reader, held: Held, own: Held) -> Steps[bool]:
    """Read from an opening bracket to the one that closes it; returns whether it was closed."""
    sink, depth = twice(held, own), 0
    while not held.full:
        yield from reader.run(INSIDE, sink, held)
        sign = yield from reader.take(1, sink)
        if sign in ("'", '"'):
            if not (yield from _quoted(reader, sign, sink, held)):
                return False
        elif sign and sign in "([{":
            depth += 1
        elif sign:
            depth -= 1
            if depth == 0:
                return True
        else:
            return False
    return False


def _quoted(reader: Reader, quote: str, sink: Sink, held: Held) -> Steps[bool]:
    while not held.full:
        yield from reader.run(QUOTED[quote], sink, held)
        if (yield from reader.literal(quote, sink)):
            return True
        if not (yield from reader.take(2, sink)):
            return False
    return False


class _Tokens:
    """The tokens of a call, one after another."""

    def __init__(self, text: str) -> None:
        self._rest = self._split(text)
        self.kind, self.text = next(self._rest)

    @staticmethod
    def _split(text: str) -> Iterator[tuple[str, str]]:
        at, text = 0, text.rstrip()
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise NoCall(text[at : at + 20])
            yield found.lastgroup, found.group(found.lastgroup)
            at = found.end()
        yield "end", ""

    def take(self, *expected: str) -> tuple[str, str]:
        """Take the next token, which must be of an expected kind or an expected sign."""
        now = self.kind, self.text
        if now[0] not in expected and now[1] not in expected:
            raise NoCall(self.text)
        self.kind, self.text = next(self._rest, ("end", ""))
        return now


def _read(text: str) -> tuple[str, dict[str, Any]]:
    tokens = _Tokens(text)
    name = tokens.take("word")[1]
    tokens.take("(")
    arguments: dict[str, Any] = {}
    while tokens.text != ")":
        key = tokens.take("word")[1]
        tokens.take("=")
        arguments[key] = _value(tokens, 0)
        if tokens.text != ")":
            tokens.take(",")
    return name, arguments


def _value(tokens: _Tokens, depth: int) -> Any:
    kind, text = tokens.take("text", "number", "word", "[", "(", "{")
    if depth > DEEPEST:
        raise NoCall(text)
    try:
        if kind == "text":
            return ast.literal_eval(text.replace("\n", "\\n").replace("\r", "\\r"))
        if kind == "number":
            number = int(text) if text.lstrip("+-").isdigit() else float(text)
            if isinstance(number, float) and not math.isfinite(number):  # such as 1e999, for which JSON has no word
                raise NoCall(text)
            return number
    except (ValueError, SyntaxError):
        raise NoCall(text) from None
    if kind == "word":
        if text not in WORDS:
            raise NoCall(text)
        return WORDS[text]
    return _object(tokens, depth) if text == "{" else _list(tokens, CLOSES[text], depth)


def _list(tokens: _Tokens, close: str, depth: int) -> list[Any]:
    found: list[Any] = []
    while tokens.text != close:
        found.append(_value(tokens, depth + 1))
        if tokens.text != close:
            tokens.take(",")
    tokens.take(close)
    return found


def _object(tokens: _Tokens, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while tokens.text != "}":
        key = _value(tokens, depth + 1)
        if not isinstance(key, str):
            raise NoCall(str(key))
        tokens.take(":")
        found[key] = _value(tokens, depth + 1)
        if tokens.text != "}":
            tokens.take(",")
    tokens.take("}")
    return found
