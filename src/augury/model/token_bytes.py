"""The bytes of single tokens, which their text does not show where a token is only part of a character."""

from __future__ import annotations

import json
import re
from typing import Any

FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE = "▁"


class TokenBytes:
    """Reads the vocabulary's spellings: byte-level ones, or those with a token for each lone byte."""

    def __init__(self, inner: Any) -> None:
        rust: Any = getattr(inner, "_tokenizer", None)
        self._spelling = rust.id_to_token if rust is not None else inner.convert_ids_to_tokens
        self._added = set(rust.get_added_tokens_decoder()) if rust is not None else set()
        decoder = rust.decoder if rust is not None else None
        steps = _decoder_steps(json.loads(decoder.__getstate__())) if decoder is not None else []
        kinds = {step["type"] for step in steps}
        self._letters = _byte_of_letter() if "ByteLevel" in kinds else {}
        self._falls_back = "ByteFallback" in kinds
        self._spaces = "Metaspace" in kinds or any(
            step["type"] == "Replace" and step["pattern"].get("String") == SPACE for step in steps
        )

    def of(self, token: int, text: str) -> bytes:
        """The token's bytes; those of `text`, its decoding, where the spelling says no more."""
        spelled = self._spelling(token) if token not in self._added else None
        if spelled is None:
            return text.encode("utf-8", "replace")
        if self._letters and all(letter in self._letters for letter in spelled):
            return bytes(self._letters[letter] for letter in spelled)
        if self._falls_back and (lone := FALLBACK.fullmatch(spelled)):
            return bytes([int(lone.group(1), 16)])
        if self._spaces:  # decoded alone, a token loses the space it begins with
            return str(spelled).replace(SPACE, " ").encode("utf-8", "replace")
        return text.encode("utf-8", "replace")


def _decoder_steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _decoder_steps(inner)]


def _byte_of_letter() -> dict[str, int]:
    """Byte-level vocabularies write printable bytes as themselves, and the others as letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
