"""What a request begins with: digests of its session and of its first blocks, from the JSON that a client sends.

Text is hashed as it is sent: the router needs no tokenizer, since texts with a common prefix have tokens with one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

BLOCK = 256  # bytes of text: some 64 tokens
MOST = 256  # blocks that are hashed; what two prompts share beyond that is not worth knowing
HEAD = 8  # blocks that identify the session of a prompt without turns
DIGEST = 16
# Fields that come before the conversation in a prompt, or decide which caches it may use.
BEFORE = ("model", "cache_salt", "tools", "functions", "system", "instructions", "chat_template_kwargs")
TURNS = ("messages", "input")


class Prefix(NamedTuple):
    """What the router knows of a request."""

    session: bytes  # the same for all turns of a conversation
    blocks: tuple[bytes, ...]  # digests of the prompt up to the end of each block


def prefix_of(asked: Any, tenant: str = "") -> Prefix | None:
    """The prefix of a generation request; None if it has no readable text, which its replica then refuses."""
    if not isinstance(asked, dict):
        return None
    before = json.dumps([tenant, *(asked.get(name) for name in BEFORE)], ensure_ascii=False)
    text, first = _text(asked)
    if not text:
        return None
    blocks = tuple(_chain(before.encode("utf-8", "surrogatepass"), text))
    key = asked.get("prompt_cache_key")  # OpenAI's field for requests that share a prefix
    named = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else text[:first]
    return Prefix(_digest(before.encode("utf-8", "surrogatepass") + b"\0" + named), blocks)


def _text(asked: dict[str, Any]) -> tuple[bytes, int]:
    """The beginning of a conversation or a prompt, and how many of its bytes identify the session."""
    turns = next((asked[name] for name in TURNS if isinstance(asked.get(name), list)), None)
    if turns is not None:
        return _conversation(turns)
    prompt = asked.get("input", asked.get("prompt"))
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]  # of several prompts the first decides
    if isinstance(prompt, list):
        prompt = " ".join(map(str, prompt[: BLOCK * MOST]))
    text = prompt.encode("utf-8", "surrogatepass")[: BLOCK * MOST] if isinstance(prompt, str) else b""
    return text, HEAD * BLOCK


def _conversation(turns: list[Any]) -> tuple[bytes, int]:
    """Turns as text, and the bytes up to the end of the first user turn, which identify the session."""
    text, first = bytearray(), 0
    for turn in turns:
        text += json.dumps(turn, ensure_ascii=False, sort_keys=True).encode("utf-8", "surrogatepass")
        if not first and isinstance(turn, dict) and turn.get("role") == "user":
            first = len(text)
        if len(text) >= BLOCK * MOST and first:
            break
    return bytes(text), first or HEAD * BLOCK


def _chain(before: bytes, text: bytes) -> Iterator[bytes]:
    """The digest of everything up to the end of each whole block."""
    running = blake2b(before, digest_size=DIGEST)
    for start in range(0, min(len(text), BLOCK * MOST) - BLOCK + 1, BLOCK):
        running.update(text[start : start + BLOCK])
        yield running.copy().digest()


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=DIGEST, person=b"session").digest()
