"""The lines of figures that a server logs every ten seconds: drafts of any release, load, tokens."""

from __future__ import annotations

import re

from augury.tools.live.drafting import Drafting

# Today's line; up to 0.10 the rate came first, and before 0.8.5 there was no length. The first engine's (V0), told by
# its system efficiency, counts since the start and otherwise.
DRAFTS = re.compile(
    r"Spec(?:Decoding|ulative) metrics: (?!.*System efficiency)"
    r".*?(?:Accepted|Number of accepted tokens): (\d{1,15}).*?(?:Drafted|Number of draft tokens): (\d{1,15})"
)
LENGTH = re.compile(r"Mean acceptance length: (\d{1,6}\.\d+)")
POSITIONS = re.compile(r"Per-position acceptance rate: ((?:\d\.\d+(?:, )?)+)")
LOAD = re.compile(r"Running: (\d+) reqs, Waiting: (\d+) reqs.*?KV cache usage: ([\d.]+)%")
GENERATED = re.compile(r"Avg generation throughput: (\d{1,9}(?:\.\d+)?) tokens/s")
EVERY = 10.0  # seconds between two such lines, unless a variable says otherwise
USUAL_K = 8  # tokens a draft where the log does not tell K: rather too many, so that fewer drafts are believed


def read_drafts(line: str, k: int | None) -> Drafting | None:
    """What one line says; drafts are not written, and follow from the length or from the positions."""
    found = DRAFTS.search(line)
    if not found:
        return None
    accepted, drafted = float(found[1]), float(found[2])
    at = POSITIONS.search(line)
    rates = [float(rate) for rate in at[1].rstrip(", ").split(", ")] if at else []
    length = LENGTH.search(line)
    more = float(length[1]) - 1 if length else 0.0
    drafts = accepted / more if more > 0.005 else drafted / (len(rates) or k or USUAL_K)
    return Drafting(drafts, drafted, accepted, tuple(rate * drafts for rate in rates))
