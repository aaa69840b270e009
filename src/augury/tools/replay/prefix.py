"""Traces in which a turn sends the conversation again: what was decoded, and what a prefix cache would have had."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from augury.tools.replay.tokens import Script

BLOCK = 16  # tokens: vLLM's block, the least that a prefix cache finds again


def decoded_once(scripts: Iterable[Script]) -> Iterator[Script]:
    """Each answer only where it was given; sent again as a part of a later request it is prompt.

    A record that repeats a tenant's earlier one from end to end is a conversation of its own: what was new in the first
    is new in it.
    """
    given: set[tuple[str, bytes]] = set()
    records: dict[tuple[str, bytes], int] = {}  # by their ends: how many answers each sent again
    for script in scripts:
        ends = [stop for _, stop in script.spans]
        places = [(script.tenant, digest) for digest in _digests(script.text, ends)]
        again = max((n for n, place in enumerate(places[:-1], 1) if place in given), default=0)
        if places:
            again = records.setdefault(places[-1], again)
            given.update(places)
        yield (
            replace(script, spans=script.spans[again:], resent=again, resent_tokens=ends[again - 1])
            if again
            else script
        )


def prefix_share(scripts: Iterable[Script]) -> float:
    """The share of prompt tokens that an earlier request had as its beginning, in whole blocks.

    A cache that holds everything finds so many; a real one finds at most as many.
    """
    cached: set[bytes] = set()
    found = asked = 0
    for script in scripts:
        blocks = list(_digests(script.text, range(BLOCK, len(script.text) + 1, BLOCK)))
        for start, stop in script.spans:
            most = max(0, start - 1) // BLOCK  # the last token of a prompt is always computed
            hits = next((n for n, block in enumerate(blocks[:most]) if block not in cached), most)
            found, asked = found + hits * BLOCK, asked + start
            cached.update(blocks[: stop // BLOCK])
    return found / asked if asked else 0.0


def _digests(text: np.ndarray, ends: Iterable[int]) -> Iterator[bytes]:
    """Of the text up to each end; the ends rise, so that it is read once."""
    running, start = blake2b(digest_size=16), 0
    for end in ends:
        running.update(np.ascontiguousarray(text[start:end]).tobytes())
        start = end
        yield running.copy().digest()
