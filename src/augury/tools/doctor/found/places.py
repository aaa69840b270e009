"""JSON and YAML objects with the position of every key and value, and the smallest edits that change them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import yaml

from augury.tools.doctor.found.allowance import spend
from augury.tools.doctor.found.merged import has_merges, pairs
from augury.tools.doctor.found.shell_words import Word

SPACE = re.compile(r"[ \t\r\n]*")
SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null|NaN|-?Infinity")
DEEPEST = 60  # levels; nothing a person writes is deeper


class Edit(NamedTuple):
    """A stretch of the source and the text that replaces it."""

    start: int
    end: int
    text: str


class NotJson(ValueError):
    """Why a text is not JSON, and the offset of the error."""

    def __init__(self, says: str, at: int) -> None:
        super().__init__(says)
        self.at = at


@dataclass(slots=True)
class Node:
    """A value and its position in its word."""

    origin: Word
    value: Any
    start: int
    end: int
    members: list[Member] = field(default_factory=list)  # of an object
    items: list[Node] = field(default_factory=list)  # of a list
    style: Literal["json", "block", "call"] = "json"  # a call: of Python, with keywords
    untold: str = ""  # a part that is known only at run time
    merged: bool = False  # some members are written elsewhere, next to others

    @property
    def place(self) -> tuple[int, int]:
        """The start and end of the value in the source."""
        return self.origin.body.place(self.start, self.end)

    def member(self, name: str) -> Member | None:
        """The last member of that name, since the last one wins; dashes and underscores are equal."""
        found = [m for m in self.members if m.name.replace("-", "_") == name]
        return found[-1] if found else None


@dataclass(slots=True)
class Member:
    """A key and its value."""

    name: str
    start: int  # of the key
    key_end: int
    node: Node


def read_json(word: Word) -> Node:
    """Parse one JSON value that fills a word."""
    parser = _Json(word)
    node = parser.value(parser.space(0), 0)
    rest = parser.space(node.end)
    if rest < len(word.text):
        raise NotJson("something follows the end of the JSON", rest)
    return node


class _Json:
    def __init__(self, word: Word) -> None:
        self.word, self.text = word, word.text

    def space(self, at: int) -> int:
        found = SPACE.match(self.text, at)
        return found.end() if found else at

    def value(self, at: int, depth: int) -> Node:
        letter = self.text[at : at + 1]
        if depth > DEEPEST:
            raise NotJson("it is nested too deeply", at)
        if letter == "{":
            return self._object(at, depth)
        if letter == "[":
            return self._list(at, depth)
        if letter == '"':
            text, end = self._string(at)
            return Node(self.word, text, at, end)
        found = SCALAR.match(self.text, at)
        if not found:
            raise NotJson("a value is expected" if letter else "it ends too early", at)
        try:
            return Node(self.word, json.loads(found[0]), at, found.end())
        except ValueError:
            raise NotJson("a number has too many digits", at) from None

    def _string(self, at: int) -> tuple[str, int]:
        try:
            return json.decoder.scanstring(self.text, at + 1, False)  # type: ignore[attr-defined,no-any-return]
        except ValueError as error:
            raise NotJson("a text is not closed or holds a wrong escape", getattr(error, "pos", at)) from None

    def _object(self, at: int, depth: int) -> Node:
        node, i = Node(self.word, {}, at, at), self.space(at + 1)
        while self.text[i : i + 1] != "}":
            if self.text[i : i + 1] != '"':
                raise NotJson("a key in double quotes is expected", i)
            name, end = self._string(i)
            colon = self.space(end)
            if self.text[colon : colon + 1] != ":":
                raise NotJson("a colon is expected", colon)
            inner = self.value(self.space(colon + 1), depth + 1)
            node.members.append(Member(name, i, end, inner))
            node.value[name] = inner.value
            i = self._next(inner.end, "}")
        node.end = i + 1
        return node

    def _list(self, at: int, depth: int) -> Node:
        node, i = Node(self.word, [], at, at), self.space(at + 1)
        while self.text[i : i + 1] != "]":
            inner = self.value(i, depth + 1)
            node.items.append(inner)
            node.value.append(inner.value)
            i = self._next(inner.end, "]")
        node.end = i + 1
        return node

    def _next(self, end: int, close: str) -> int:
        i = self.space(end)
        if self.text[i : i + 1] == close:
            return i
        if self.text[i : i + 1] != ",":
            raise NotJson("it ends too early" if i >= len(self.text) else "a comma is expected", i)
        i = self.space(i + 1)
        if self.text[i : i + 1] == close:
            raise NotJson("a comma stands before the closing bracket", i - 1)
        return i


def from_yaml(node: yaml.Node, origin: Word, depth: int = 0) -> Node:
    """Convert a YAML value to a Node; `origin` is the whole file."""
    start, end = node.start_mark.index, node.end_mark.index
    spend(20)  # an alias is read again at every use
    text = origin.text[start:end]
    found = Node(origin, None, start, start + len(text.rstrip()))
    if depth > DEEPEST:
        return found
    if isinstance(node, yaml.MappingNode):
        found.value, found.style = {}, "json" if node.flow_style else "block"
        found.merged = has_merges(node)
        for key, value in pairs(node):
            inner = from_yaml(value, origin, depth + 1)
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            found.members.append(Member(name, key.start_mark.index, key.end_mark.index, inner))
            found.value[name] = inner.value
    elif isinstance(node, yaml.SequenceNode):
        found.items = [from_yaml(item, origin, depth + 1) for item in node.value]
        found.value = [item.value for item in found.items]
    else:
        found.value = _scalar(node)
    return found


def _scalar(node: Any) -> Any:
    try:
        return yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError, OverflowError):
        return node.value


def _edit(origin: Word, start: int, end: int, text: str) -> Edit:
    return Edit(origin.body.at[start], origin.body.at[end], text)


def set_value(member: Member, value: Any) -> list[Edit]:
    """The edit that changes a key's value."""
    node = member.node
    written = node.origin.written(json.dumps(value, ensure_ascii=False), node.start)
    return [Edit(*node.place, written)]


def rename(member: Member, name: str) -> list[Edit]:
    """The edit that renames a key."""
    origin = member.node.origin
    quoted = origin.text[member.start : member.start + 1] in "\"'"
    start, end = origin.body.place(member.start, member.key_end)
    return [Edit(start, end, origin.written(json.dumps(name) if quoted else name, member.start))]


def drop(node: Node, member: Member) -> list[Edit]:
    """The edit that removes a key."""
    if node.merged:
        return []  # the text around it may belong to another mapping
    place = node.members.index(member)
    origin = node.origin
    if node.style == "block":
        start = origin.text.rfind("\n", 0, member.start) + 1
        end = origin.text.find("\n", member.node.end)
        end = len(origin.text) if end < 0 else end + 1
        if origin.text[start : member.start].strip():  # the first key of a list's item shares its line with the dash
            later = node.members[place + 1].start if place + 1 < len(node.members) else member.node.end
            return [_edit(origin, member.start, later, "")]
        return [_edit(origin, start, end, "")]
    if place + 1 < len(node.members):
        start, end = member.start, node.members[place + 1].start
    elif place:
        start, end = node.members[place - 1].node.end, member.node.end
    else:
        start, end = member.start, member.node.end
    return [Edit(*origin.body.place(start, end), "")]


def add(node: Node, name: str, value: Any) -> list[Edit]:
    """The edit that adds a key after the others."""
    if node.merged:
        return []
    origin, written = node.origin, json.dumps(value, ensure_ascii=False)
    if node.style == "block" and node.members:
        last = node.members[-1]
        begin = origin.text.rfind("\n", 0, node.members[0].start) + 1
        indent = " " * (node.members[0].start - begin)
        text = f"\n{indent}{name}: {written}"
        return [_edit(origin, last.node.end, last.node.end, text)]
    if node.style == "call":
        at, comma = (node.members[-1].node.end, ", ") if node.members else (node.end - 1, "")
        text = f"{comma}{name}={written}"
    elif not node.members:
        at = node.start + 1
        text = f"{json.dumps(name)}: {written}"
    else:
        last = node.members[-1]
        at = last.node.end
        wide = " " if ": " in origin.text[last.key_end : last.node.start] else ""
        text = f",{wide}{json.dumps(name)}:{wide}{written}"
    place = origin.body.place(at - 1, at)[1]
    return [Edit(place, place, origin.written(text, at - 1))]
