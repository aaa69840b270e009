"""A suffix cache on disk: the responses, from which the trees are rebuilt.

The trees are a function of the responses and their order, so nothing else is saved: four bytes per token, and a file
that stays valid when the layout of the trees changes.

    magic 8 bytes | version u32 | header length u32 | token count u64 | checksum 16 bytes | header, JSON | tokens, int32

All numbers are little-endian; the checksum covers header and tokens.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from augury.index.suffix import SuffixCache

MAGIC = b"AUGURYSX"
VERSION = 1
DEEPEST = 32_767  # tokens, the most a SuffixCache takes
_PREAMBLE = struct.Struct("<8sIIQ16s")


class SuffixFileError(ValueError):
    """A file that does not hold a suffix cache we can read."""

    def __init__(self, path: Path, problem: str) -> None:
        """Say which file, what is wrong, and what to do."""
        super().__init__(f"suffix cache {path}: {problem}; build one with `augury suffix build`, or name another file.")
        self.path = path


def save(cache: SuffixCache, path: str | os.PathLike[str]) -> int:
    """Write the responses of every tenant to a file atomically; returns its size in bytes."""
    target = Path(path)
    responses = cache.responses()
    lines = [[tenant, name, len(tokens)] for tenant, name, tokens in responses]
    header = json.dumps({"depth": cache.max_depth, "responses": lines}).encode()
    tokens = np.concatenate([np.empty(0, np.int32), *(ids for _, _, ids in responses)]).astype("<i4")
    digest = _checksum(header, tokens)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_PREAMBLE.pack(MAGIC, VERSION, len(header), len(tokens), digest))
            file.write(header)
            file.write(tokens.data)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(name, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
    return size


def load(
    path: str | os.PathLike[str], max_depth: int | None = None, max_requests: int = 10_000, max_bytes: int | None = None
) -> SuffixCache:
    """A cache with the responses of a file, the newest `max_requests` of them; the depth is the file's unless given.

    Raises SuffixFileError if the file is truncated, not a suffix cache, or of another version.
    """
    target = Path(path)
    header, tokens = _read(target)
    cache = SuffixCache(max_depth or header["depth"], max_requests, max_bytes)
    ends = np.cumsum([length for _, _, length in header["responses"]], dtype=np.int64)
    first = max(0, len(ends) - max_requests) if max_requests >= 0 else 0
    for (tenant, name, length), end in zip(header["responses"][first:], ends[first:].tolist(), strict=True):
        cache.add(name, tokens[end - length : end], tenant)
    return cache


def _checksum(header: bytes, tokens: np.ndarray) -> bytes:
    digest = blake2b(header, digest_size=16)
    digest.update(tokens.data)
    return digest.digest()


def _read(path: Path) -> tuple[dict[str, Any], np.ndarray]:
    with path.open("rb") as file:
        data = file.read(_PREAMBLE.size)
        if len(data) < _PREAMBLE.size or data[: len(MAGIC)] != MAGIC:
            raise SuffixFileError(path, "it is not a suffix cache")
        _, version, header_length, count, digest = _PREAMBLE.unpack(data)
        if version != VERSION:
            raise SuffixFileError(path, f"it has format version {version}, and this Augury reads version {VERSION}")
        size, promised = os.fstat(file.fileno()).st_size, _PREAMBLE.size + header_length + 4 * count
        if size != promised:  # checked before reading: the stated size may exceed the memory
            raise SuffixFileError(path, f"it is {size} bytes long instead of {promised}, so it was probably truncated")
        header, rest = file.read(header_length), file.read(4 * count)
    if len(rest) != 4 * count:
        raise SuffixFileError(path, "it was truncated while it was read")
    tokens = np.frombuffer(rest, "<i4", count)
    if _checksum(header, tokens) != digest:
        raise SuffixFileError(path, "it is damaged: its checksum does not match")
    return _sound(path, header, tokens), tokens


def _sound(path: Path, raw: bytes, tokens: np.ndarray) -> dict[str, Any]:
    """Check the header's content: a matching checksum does not make it valid."""
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        raise SuffixFileError(path, "its header is not JSON") from None
    lines = header.get("responses") if isinstance(header, dict) else None
    if not isinstance(lines, list) or not all(map(_is_line, lines)):
        raise SuffixFileError(path, "its header is not a list of tenants, names and lengths")
    if type(header.get("depth")) is not int or not 1 <= header["depth"] <= DEEPEST:
        raise SuffixFileError(path, f"its depth is not a whole number from 1 to {DEEPEST}")
    if sum(length for _, _, length in lines) != len(tokens):
        raise SuffixFileError(path, f"the lengths in its header do not add up to its {len(tokens)} tokens")
    if len({name for _, name, _ in lines}) != len(lines):
        raise SuffixFileError(path, "two of its responses have the same name")
    if len(tokens) and int(tokens.min()) < 0:
        raise SuffixFileError(path, "one of its tokens is negative")
    return dict(header)


def _is_line(line: Any) -> bool:
    """Whether this is [tenant, name, length]."""
    if not isinstance(line, list) or len(line) != 3:
        return False
    tenant, name, length = line
    return isinstance(tenant, str) and isinstance(name, str) and type(length) is int and length >= 0
