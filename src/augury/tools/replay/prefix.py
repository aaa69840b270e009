"""Traces whose requests resend the conversation: what was decoded, and what a prefix cache would have held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from augury.tools.replay.tokens import Script

BLOCK = 16  # tokens: vLLM's block, the unit of prefix caching


def decoded_once(scripts: Iterable[Script]) -> Iterator[Script]:
    """Keep each answer only in the record that generated it; resent in a later request, it is part of the prompt.

    A record that repeats an earlier one of its tenant from end to end is a conversation of its own, with the same
    answers counted.
    """
    given: set[tuple[str, bytes]] = set()
    records: dict[tuple[str, bytes], int] = {}  # by the digest at their end: how many answers each resent
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
    """The share of prompt tokens in a prefix shared with an earlier request, in whole blocks.

    This is the hit rate of an unlimited cache, the upper bound for a real one.
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
    """A digest of the text up to each end; the ends must ascend, so that the text is read once."""
    running, start = blake2b(digest_size=16), 0
    for end in ends:
        running.update(np.ascontiguousarray(text[start:end]).tobytes())
        start = end
        yield running.copy().digest()
