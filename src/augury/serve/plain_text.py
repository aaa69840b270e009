"""Control tokens spelled out in a user's text stay text.

A chat template writes control tokens such as <|im_end|> around the messages. If a message spells one, encoding the
rendered conversation as a whole would turn that spelling into the token, and the user could end his own message and
speak as somebody else. So one character of every such spelling is swapped for a private one before rendering. What
still reads as a control token afterwards is the template's own; the pieces between those get their characters back and
are encoded by a twin of the tokenizer that knows no control tokens.

The price, paid only by conversations that do spell one: a template that looks for that spelling in a message does not
find it, and tokenizers that mark the beginning of a text mark the beginning of each piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

PRIVATE = 0xF0000  # the first code point of a plane that no script uses


class Guard:
    """Finds control tokens of one tokenizer in users' strings."""

    def __init__(self, inner: Any) -> None:
        rust: Any = getattr(inner, "_tokenizer", None)
        added = rust.get_added_tokens_decoder() if rust is not None else {}
        self._ids = {token.content: number for number, token in added.items() if token.special and token.content}
        self._control = re.compile("|".join(re.escape(t) for t in sorted(self._ids, key=len, reverse=True)) or r"(?!)")
        self._rust = rust
        self._twin: Any = None

    def mask(self, value: Any) -> tuple[Any, dict[int, str]]:
        """A copy of messages or tools with every spelling broken, and what the private characters stand for."""
        strings = list(_strings(value))
        if not self._ids or not any(self._suspect(s) for s in strings):
            return value, {}
        taken = {ord(c) for s in strings for c in s if ord(c) >= PRIVATE}
        letters = sorted({c for token in self._ids for c in token})
        free = (code for code in range(PRIVATE, 0x110000) if code not in taken)
        private = dict(zip(letters, free, strict=False))
        masked = _mapped(value, lambda s: self._broken(s, private) if self._suspect(s) else s)
        return masked, {code: letter for letter, code in private.items()}

    def encode(self, text: str, stands_for: dict[int, str]) -> list[int]:
        """Token ids of a rendered conversation whose private characters are to be read as plain ones."""
        ids: list[int] = []
        end = 0
        for found in self._control.finditer(text):
            ids += self._plain(text[end : found.start()].translate(stands_for))
            ids.append(self._ids[found.group()])
            end = found.end()
        return ids + self._plain(text[end:].translate(stands_for))

    def _suspect(self, string: str) -> bool:
        """Whether a string holds a control token, or an end or a beginning of one that a neighbour may complete."""
        return bool(self._control.search(string)) or any(self._parts(string))

    def _parts(self, string: str) -> list[int]:
        """Where a token may begin at the end of the string, or end at its start: the positions to break."""
        places = []
        for token in self._ids:
            for k in range(1, len(token)):
                if string.endswith(token[:k]):
                    places.append(len(string) - k)
                if string.startswith(token[k:]):
                    places.append(0)
        return places

    def _broken(self, string: str, private: dict[str, int]) -> str:
        places = {found.start() for found in self._control.finditer(string)} | set(self._parts(string))
        # A token may also begin inside another; breaking the first character of each leaves none whole.
        for token in self._ids:
            at = string.find(token)
            while at >= 0:
                places.add(at)
                at = string.find(token, at + 1)
        return "".join(chr(private[c]) if i in places and c in private else c for i, c in enumerate(string))

    def _plain(self, piece: str) -> list[int]:
        """A piece as ordinary text; character by character where the vocabulary has the spelling as a piece."""
        if not piece:
            return []
        if self._twin is None:  # rust is there: without it no control token was ever found
            self._twin = type(self._rust).from_str(self._rust.to_str())
            self._twin.encode_special_tokens = True
        ids: list[int] = self._twin.encode(piece, add_special_tokens=False).ids
        if not set(ids) & set(self._ids.values()):
            return ids
        return [t for c in piece for t in self._twin.encode(c, add_special_tokens=False).ids]


def _strings(value: Any) -> Any:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """The same structure with every string changed; keys too, since a template may write them out."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(inner, change) for key, inner in value.items()}
    return [_mapped(inner, change) for inner in value] if isinstance(value, list) else value
