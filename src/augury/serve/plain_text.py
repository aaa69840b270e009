"""Control tokens spelled out in a user's text stay text.

A chat template writes control tokens such as <|im_end|> around the messages. If a message spells one, encoding the
rendered conversation as a whole would turn that spelling into the token, and users could end their own message and
speak in another role. So one character of every such spelling is swapped for a private one before rendering. What
still reads as a control token afterwards is the template's own; the pieces between those get their characters back and
are encoded by a twin of the tokenizer that knows no control tokens.

The price, paid only by conversations that do spell one: a template that looks for that spelling in a message does not
find it, and tokenizers that mark the beginning of a text mark the beginning of each piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

PRIVATE = 0xF0000  # the first code point of a plane that no script uses
UNUSUAL = re.compile(f"[{chr(PRIVATE)}-{chr(0x10FFFF)}]")
SLICE = 1 << 16  # characters that are looked up before other threads get a turn


class Guard:
    """Finds control tokens of one tokenizer in users' strings.

    A message may spell a million of them, and other threads serve streams meanwhile: strings are searched and changed
    as wholes, never character by character, and only `encode_batch` releases the GIL while it works.
    """

    def __init__(self, inner: Any) -> None:
        rust: Any = getattr(inner, "_tokenizer", None)
        added = rust.get_added_tokens_decoder() if rust is not None else {}
        self._ids = {token.content: number for number, token in added.items() if token.special and token.content}
        self._numbers = frozenset(self._ids.values())
        self._control = re.compile("|".join(re.escape(t) for t in sorted(self._ids, key=len, reverse=True)) or r"(?!)")
        self._heads = {token[:k] for token in self._ids for k in range(1, len(token))}
        self._tails = {token[k:] for token in self._ids for k in range(1, len(token))}
        self._longest = max(map(len, self._ids), default=0)
        self._rust = rust
        self._twin: Any = None

    def mask(self, value: Any) -> tuple[Any, dict[int, str]]:
        """A copy of messages or tools with every spelling broken, and what the private characters stand for."""
        strings = list(strings_in(value))
        if not self._ids or not any(self._suspect(s) for s in strings):
            return value, {}
        taken = {ord(c) for s in (*strings, *self._ids) if not s.isascii() for c in set(UNUSUAL.findall(s))}
        letters = sorted({c for token in self._ids for c in token})
        free = (code for code in range(PRIVATE, 0x110000) if code not in taken)
        private = {letter: chr(code) for letter, code in zip(letters, free, strict=False)}
        masked = _mapped(value, lambda s: self._broken(s, private) if self._suspect(s) else s)
        return masked, {ord(character): letter for letter, character in private.items()}

    def encode(self, text: str, stands_for: dict[int, str]) -> list[int]:
        """Token ids of a rendered conversation whose private characters are to be read as plain ones."""
        private = re.compile(f"[{''.join(map(chr, stands_for))}]")
        pieces, control, end = [], [], 0
        for found in self._control.finditer(text):
            pieces.append(text[end : found.start()])
            control.append(self._ids[found.group()])
            end = found.end()
        pieces.append(text[end:])
        plain = self._plain([private.sub(lambda c: stands_for[ord(c.group())], piece) for piece in pieces])
        ids = plain[0]
        for number, piece in zip(control, plain[1:], strict=True):
            ids.append(number)
            ids += piece
        return ids

    def _suspect(self, string: str) -> bool:
        """Whether a string holds a control token, or ends with the beginning of one that the next may complete."""
        return bool(self._control.search(string)) or bool(self._begun(string))

    def _parts(self, string: str) -> set[int]:
        """Where a token may begin at the end of the string, or end at its start: the positions to break."""
        ends = any(string[:k] in self._tails for k in self._reach(string))
        return self._begun(string) | ({0} if ends else set())

    def _begun(self, string: str) -> set[int]:
        return {len(string) - k for k in self._reach(string) if string[-k:] in self._heads}

    def _reach(self, string: str) -> range:
        return range(1, min(self._longest, len(string) + 1))

    def _broken(self, string: str, private: dict[str, str]) -> str:
        # A token may begin inside another, so one pass may leave some whole; each takes the first of those away.
        while found := set(self._control.findall(string)):
            for token in found:
                string = string.replace(token, private[token[0]] + token[1:])
        for at in self._parts(string):
            string = string[:at] + private[string[at]] + string[at + 1 :]
        return string

    def _plain(self, pieces: list[str]) -> list[list[int]]:
        """Pieces as ordinary text; character by character where the vocabulary has a control token's spelling."""
        if self._twin is None:  # rust is there: without it no control token was ever found
            self._twin = type(self._rust).from_str(self._rust.to_str())
            self._twin.encode_special_tokens = True
        encoded = [e.ids for e in self._twin.encode_batch_fast(pieces, add_special_tokens=False)]
        return [
            ids if self._numbers.isdisjoint(ids) else self._spelled(piece)
            for piece, ids in zip(pieces, encoded, strict=True)
        ]

    def _spelled(self, piece: str) -> list[int]:
        letters = list(set(piece))
        encoded = self._twin.encode_batch_fast(letters, add_special_tokens=False)
        ids_of = dict(zip(letters, (e.ids for e in encoded), strict=True))
        ids: list[int] = []
        for at in range(0, len(piece), SLICE):
            ids += chain.from_iterable(map(ids_of.__getitem__, piece[at : at + SLICE]))
        return ids


def strings_in(value: Any) -> Iterator[str]:
    """Every string of a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from strings_in(key)
            yield from strings_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings_in(inner)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """The same structure with every string changed; keys too, since a template may write them out."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(inner, change) for key, inner in value.items()}
    return [_mapped(inner, change) for inner in value] if isinstance(value, list) else value
