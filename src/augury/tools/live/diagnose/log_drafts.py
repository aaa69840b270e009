"""The metrics lines that a server logs every ten seconds: drafts (of any release), load and tokens."""

from __future__ import annotations

import re

from augury.tools.live.drafting import Drafting

# Today's line; up to 0.10 the rate came first, and before 0.8.5 there was no length. The V0 engine's line, recognised
# by its system efficiency, is excluded: it counts since the start and differently.
DRAFTS = re.compile(
    r"Spec(?:Decoding|ulative) metrics: (?!.*System efficiency)"
    r".*?(?:Accepted|Number of accepted tokens): (\d{1,15}).*?(?:Drafted|Number of draft tokens): (\d{1,15})"
)
LENGTH = re.compile(r"Mean acceptance length: (\d{1,6}\.\d+)")
POSITIONS = re.compile(r"Per-position acceptance rate: ((?:\d\.\d+(?:, )?)+)")
LOAD = re.compile(r"Running: (\d+) reqs, Waiting: (\d+) reqs.*?KV cache usage: ([\d.]+)%")
GENERATED = re.compile(r"Avg generation throughput: (\d{1,9}(?:\.\d+)?) tokens/s")
EVERY = 10.0  # seconds between two such lines, unless a variable says otherwise
USUAL_K = 8  # tokens per draft if the log does not give K; high on purpose, so that fewer drafts are inferred


def read_drafts(line: str, k: int | None) -> Drafting | None:
    """The counts on one line; the number of drafts is not logged, so it is inferred from the length or positions."""
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
