"""Text that remembers where it was written: each decoded character keeps its position in the source."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

Encoder = Callable[[str], str]  # how a text is written in the layer around it


@dataclass(frozen=True, slots=True)
class Mapped:
    """A decoded text, the source offset of each of its characters and of its end, and how to write into it."""

    text: str
    at: tuple[int, ...]  # one more than there are characters
    layers: tuple[Encoder, ...] = ()  # innermost first
    ends: tuple[int, ...] | None = None  # where each character's spelling ends; None: one letter each

    def until(self, start: int, end: int) -> tuple[int, ...]:
        """Where each character of a stretch ends in the source."""
        return self.ends[start:end] if self.ends is not None else tuple(at + 1 for at in self.at[start:end])

    @classmethod
    def whole(cls, source: str) -> Mapped:
        """A file as it is."""
        return cls(source, tuple(range(len(source) + 1)))

    def part(self, start: int, end: int) -> Mapped:
        """The stretch [start, end) of the text, clipped to its length."""
        start, end = max(0, start), min(end, len(self.text))
        ends = self.ends[start:end] if self.ends is not None else None
        return Mapped(self.text[start:end], self.at[start : end + 1], self.layers, ends)

    def within(self, layer: Encoder) -> Mapped:
        """The same text inside one more layer of encoding."""
        return Mapped(self.text, self.at, (layer, *self.layers), self.ends)

    def encode(self, text: str) -> str:
        """Encode a text as it must be spelt in the source here."""
        for layer in self.layers:
            text = layer(text)
        return text

    def place(self, start: int, end: int) -> tuple[int, int]:
        """The start and end of a stretch in the source."""
        first, end = self.at[min(start, len(self.text))], min(end, len(self.text))
        return first, max(first, self.until(end - 1, end)[0] if end > start else first)


def joined(parts: list[Mapped], layers: tuple[Encoder, ...]) -> Mapped:
    """Several stretches as one text."""
    text = "".join(part.text for part in parts)
    at = [offset for part in parts for offset in part.at[:-1]]
    ends = tuple(end for part in parts for end in part.until(0, len(part.text)))
    return Mapped(text, (*at, parts[-1].at[-1] if parts else 0), layers, ends)


def in_json(text: str) -> str:
    """A text as it is written inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_string(source: Mapped, start: int, end: int) -> Mapped:
    """The contents of the JSON string at [start, end), quotes included; escapes keep their positions."""
    inner = source.part(start + 1, end - 1)
    return unescaped(inner).within(in_json)


def unescaped(inner: Mapped) -> Mapped:
    """The text with the backslash escapes of JSON and of YAML's double quotes decoded."""
    raw, text, at, ends, i = inner.text, [], [], [], 0
    until = inner.until(0, len(raw))
    while i < len(raw):
        length = 1
        letter = raw[i]
        if letter == "\\" and i + 1 < len(raw):
            length = {"u": 6, "x": 4, "U": 10}.get(raw[i + 1], 2)
            letter = _letter(raw[i : i + length])
        for one in letter:
            text.append(one)
            at.append(inner.at[i])
            ends.append(until[min(i + length, len(raw)) - 1])
        i += length
    return Mapped("".join(text), (*at, inner.at[-1]), inner.layers, tuple(ends))


def _letter(escape: str) -> str:
    named = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "e": "\x1b", "v": "\v"}
    if escape[1] in "uxU":
        try:
            return chr(int(escape[2:], 16))
        except (ValueError, OverflowError):
            return escape
    if escape[1] == "\n":
        return ""  # a folded line
    return named.get(escape[1], escape[1])
