"""Conversations as an engine sees them: token ids, with the spans of the responses.

A chat turn is laid out as in most chat templates: a start token, the role on a line, the text, an end token. The end
token is part of a response, because the model generates it. Bare prompts and answers are simply concatenated, and
recorded token ids are kept as they are.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from augury.config.errors import ConfigError
from augury.tools.replay.records import Conversation

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
BATCH = 1 << 18  # characters tokenised at once
STARTS = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|start|>")
ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>")


class Encoder(Protocol):
    """Converts text to token ids."""

    name: str
    start: int  # the token that begins a turn
    end: int  # the token that ends one

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text."""
        ...

    def decode(self, ids: list[int]) -> str | None:
        """The text of some ids; None if it cannot be recovered."""
        ...


class Bytes:
    """One token per byte of UTF-8; needs no tokenizer files."""

    name, start, end = "bytes", 256, 257

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The bytes of each text."""
        return [list(text.encode("utf-8", "replace")) for text in texts]

    def decode(self, ids: list[int]) -> str | None:
        """The text of the bytes, without special tokens."""
        return bytes(token for token in ids if token < 256).decode("utf-8", "replace")


class Words:
    """One token per word with the space before it, or per punctuation mark; ids are the same in every run."""

    name, start, end = "words", 0, 1
    _pattern = re.compile(r" ?\w+|\s+|[^\w\s]")

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The checksums of each text's words."""
        return [[self._id(word) for word in self._pattern.findall(text)] for text in texts]

    def decode(self, ids: list[int]) -> str | None:
        """None: a checksum cannot be turned back into its word."""
        return None

    def _id(self, word: str) -> int:
        known = self._known.get(word)
        if known is None:
            known = self._known[word] = zlib.crc32(word.encode("utf-8", "replace")) >> 1
        return known


class Vocabulary:
    """A model's own tokens, by its tokenizer.json."""

    def __init__(self, inner: Any, name: str) -> None:
        """Wrap a tokenizer of the `tokenizers` library."""
        self._inner = inner
        size = self._inner.get_vocab_size(with_added_tokens=True)
        self.name = f"{name} ({size} tokens)"
        self.start, self.end = self._first(STARTS, size), self._first(ENDS, size + 1)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, without added special tokens."""
        try:
            found = self._inner.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:  # lone surrogates, which JSON can hold but UTF-8 cannot
            clean = [text.encode("utf-8", "replace").decode() for text in texts]
            found = self._inner.encode_batch_fast(clean, add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def decode(self, ids: list[int]) -> str | None:
        """The text of the ids, special tokens included."""
        return str(self._inner.decode(ids, skip_special_tokens=False))

    def _first(self, names: tuple[str, ...], otherwise: int) -> int:
        """The id of the first of these tokens that the vocabulary has, otherwise an unused id."""
        ids = (self._inner.token_to_id(name) for name in names)
        return next((int(token) for token in ids if token is not None), otherwise)


def encoder(name: str) -> Encoder:
    """The encoder for 'default' (the embedded model's), 'bytes', 'words', a tokenizer.json or a hub id."""
    if name in ("bytes", "words"):
        return Bytes() if name == "bytes" else Words()
    if find_spec("tokenizers") is None:
        raise ConfigError(
            f"--tokenizer {name}: the package tokenizers is not installed: pip install 'augury[traces]'; or use "
            "--tokenizer words (coarser) or bytes."
        )
    if name == "default":
        from augury.tools.replay.smollm2 import smollm2

        return Vocabulary(smollm2(), "default, SmolLM2")
    return _read(name)


def _read(name: str) -> Vocabulary:
    """The tokenizer of a file, a directory or a hub model, of which only tokenizer.json is fetched."""
    from tokenizers import Tokenizer

    path = Path(name).expanduser()
    file = path / "tokenizer.json" if path.is_dir() else path
    if not path.exists() and HUB_ID.fullmatch(name):
        from augury.model.hub import fetch_file

        file = fetch_file(name, "tokenizer.json")
    if not file.is_file():
        forms = "name a model's directory or its hub id, owner/name, or use default, bytes or words"
        raise ConfigError(f"--tokenizer {name}: no tokenizer.json; {forms}.")
    try:
        return Vocabulary(Tokenizer.from_file(str(file)), name)
    except Exception as error:  # the library raises bare Exceptions
        raise ConfigError(f"--tokenizer {file}: not a tokenizer ({' '.join(str(error).split())}).") from None


@dataclass(frozen=True, slots=True)
class Script:
    """A conversation in tokens; text[start:stop] of every span is a response, and text[:start] its prompt."""

    text: np.ndarray  # int64 [N]
    spans: list[tuple[int, int]]
    label: str
    tenant: str
    resent: int = 0  # responses before the first span that an earlier record already has
    resent_tokens: int = 0  # tokens up to the end of the last of them


def scripts(conversations: Iterable[Conversation], encoder: Encoder) -> Iterator[Script]:
    """Tokenise a stream of conversations in batches."""
    waiting: list[tuple[Conversation, list[_Piece]]] = []
    size = 0
    for conversation in conversations:
        pieces = list(_layout(conversation, encoder))
        waiting.append((conversation, pieces))
        size += sum(len(said) for said, _ in pieces) + 1
        if size >= BATCH:
            yield from _tokenised(waiting, encoder)
            waiting, size = [], 0
    yield from _tokenised(waiting, encoder)


_Piece = tuple[str | list[int], bool]  # text or ids, and whether they are part of a response


def _layout(conversation: Conversation, encoder: Encoder) -> Iterator[_Piece]:
    responses = set(conversation.responses)
    start, end = [encoder.start], [encoder.end]
    for i, (role, said) in enumerate(conversation.turns):
        if isinstance(said, list) or not conversation.chat:
            yield said, i in responses
            if i in responses and isinstance(said, str):
                yield end, True
            continue
        yield start, False
        if i in responses:
            yield from ((f"{role}\n", False), (said, True), (end, True))
        else:
            yield from ((f"{role}\n{said}", False), (end, False))
        yield "\n", False


def _tokenised(waiting: list[tuple[Conversation, list[_Piece]]], encoder: Encoder) -> Iterator[Script]:
    texts = list(dict.fromkeys(said for _, pieces in waiting for said, _ in pieces if isinstance(said, str)))
    known = dict(zip(texts, encoder.encode(texts) if texts else [], strict=True))
    for conversation, pieces in waiting:
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for said, response in pieces:
            start = len(ids)
            ids += known[said] if isinstance(said, str) else said
            if response and spans and spans[-1][1] == start:  # the end token belongs to the text before it
                spans[-1] = spans[-1][0], len(ids)
            elif response and len(ids) > start:
                spans.append((start, len(ids)))
        yield Script(np.array(ids, np.int64), spans, conversation.label, conversation.tenant)
