"""Problems with how something is written, found before its meaning is examined."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field
from typing import Any

from augury.tools.doctor.found.places import Edit, Node, NotJson, read_json
from augury.tools.doctor.found.shell_words import Word

SMART = {"“": '"', "”": '"', "„": '"', "‟": '"', "″": '"', "‘": "'", "’": "'", "‚": "'", "‛": "'"}
PLACEHOLDER = re.compile(r":\s*<[\w. /-]+>\s*[,}]")  # a value that a document leaves to its reader
MOST_WORDS = 40  # of a JSON object that the shell would have split


@dataclass(slots=True)
class Problem:
    """One problem found while reading: its name, position, values for its message, and the edits that fix it."""

    name: str
    start: int
    end: int
    says: dict[str, Any] = field(default_factory=dict)
    edits: list[Edit] = field(default_factory=list)


@dataclass(slots=True)
class Repaired:
    """The object that a split or malformed JSON was meant to be, and how many words of the command it took."""

    problem: Problem
    value: dict[str, Any] | None
    words: int


def json_kind(value: Any) -> str:
    """The type of a JSON value, worded for a message."""
    return {list: "list", str: "text", bool: "yes or no", type(None): "null"}.get(type(value), "number")


def read_object(word: Word, following: list[Word]) -> Node | Repaired:
    """Read a JSON object; a Repaired, with the problem, if it cannot be read as it is."""
    try:
        node = read_json(word)
    except NotJson as error:
        return _trouble(word, following, error)
    if not isinstance(node.value, dict):
        return Repaired(Problem("json-not-object", word.start, word.end, {"kind": json_kind(node.value)}), None, 1)
    return node


def _trouble(word: Word, following: list[Word], error: NotJson) -> Repaired:
    if PLACEHOLDER.search(word.text) or (word.expands and ("$" in word.text or "{{" in word.text)):
        return Repaired(Problem("json-has-variable", word.start, word.end, {"text": word.text}), None, 1)
    torn = _torn(word, following)
    raw = _source_of(torn)
    straight = "".join(SMART.get(letter, letter) for letter in raw)
    name = _name(word, raw, straight)
    for text in (straight, _unwrapped(straight), word.text, _unwrapped(word.text)):
        value = _object(text)
        if value is not None:
            break
    start, end = torn[0].start, torn[-1].end
    if value is None:
        at = word.body.place(error.at, error.at + 1) if name == "json-broken" and word.text else (start, end)
        return Repaired(Problem(name, *at, {"reason": str(error)}), None, len(torn))
    written = text if _is_json(text) else json.dumps(value, ensure_ascii=False)
    edit = Edit(start, end, word.anew(written))
    return Repaired(Problem(name, start, end, {"reason": str(error)}, [edit]), value, len(torn))


def _torn(word: Word, following: list[Word]) -> list[Word]:
    """The word and, if the shell would have split it, the words up to its closing bracket."""
    words = [word]
    if not word.shell or word.text[:1] not in ("{", "‘", "“", "'"):
        return words
    for other in following[:MOST_WORDS]:
        if words[-1].text.rstrip("’”'\"").endswith("}") or other.text.startswith("--"):
            break
        words.append(other)
    return words if words[-1].text.rstrip("’”'\"").endswith("}") else [word]


def _source_of(words: list[Word]) -> str:
    """The words as they were written, with double quotes restored."""
    return " ".join(word.text if not word.shell else _with_quotes(word) for word in words)


def _with_quotes(word: Word) -> str:
    """The letters of a word, with double quotes put back around each stretch that was in them."""
    out, inside = [], " "
    for letter, quote in zip(word.text, word.quotes, strict=True):
        if quote != inside:
            out += ['"'] * ((inside == '"') + (quote == '"'))
            inside = quote
        out.append(letter)
    return "".join(out) + ('"' if inside == '"' else "")


def _name(word: Word, raw: str, straight: str) -> str:
    if raw != straight:
        return "json-smart-quotes"
    if not word.shell and word.text[:1] in "'\"":
        return "json-quoted-twice"
    if word.shell and word.text.startswith("{") and '"' not in word.text and "'" not in word.text:
        return "json-quotes-eaten"
    if word.text.startswith("{") and re.search(r"[{,]\s*'", word.text):
        return "json-python-quotes"
    return "json-broken"


def _unwrapped(text: str) -> str:
    """The text without the quotes around it, also for `"{"a": 1}"`, a JSON object inside its own kind of quotes."""
    text = text.strip()
    if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]:
        return text[1:-1]
    inner = re.fullmatch(r'"(\{)(.*)(\})"', text, re.S)
    return "".join(inner.groups()) if inner else text


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _object(text: str) -> dict[str, Any] | None:
    """The object a text was meant to be: JSON, JSON with a trailing comma, a Python dictionary, or bare words."""
    less = re.sub(r",(\s*[}\]])", r"\1", text)
    for attempt in (text, less):
        try:
            found = json.loads(attempt)
        except (ValueError, RecursionError):
            try:
                found = ast.literal_eval(re.sub(r"\b(true|false|null)\b", _python, attempt.strip()))
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
        if isinstance(found, dict) and all(isinstance(key, str) for key in found) and _sayable(found):
            return found
    return _bare(text)


def _python(found: re.Match[str]) -> str:
    return {"true": "True", "false": "False", "null": "None"}[found[1]]


def _sayable(value: Any) -> bool:
    try:
        return bool(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return False


def _bare(text: str) -> dict[str, Any] | None:
    """Read `{method: ngram, num_speculative_tokens: 3}`, which is left when a shell has removed the quotes."""
    found = re.fullmatch(r"\s*\{([^{}\[\]]*)\}\s*", text)
    pairs = [part.split(":", 1) for part in found[1].split(",")] if found else []
    if not pairs or not all(len(pair) == 2 and re.fullmatch(r"\s*\w[\w-]*\s*", pair[0]) for pair in pairs):
        return None
    value = {}
    for name, said in pairs:
        try:
            value[name.strip()] = json.loads(said)
        except ValueError:
            value[name.strip()] = said.strip().strip("\"'")
    return value
