"""Suffix decoding done slowly: every count by looking at every place of every text."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

Texts = dict[int, list[int]]  # by age: a higher number is more recent
NEAR = 1e-9


class Slow(NamedTuple):
    """A draft."""

    tokens: list[int]
    parents: list[int]
    probs: list[float]
    score: float
    match_len: int


NOTHING = Slow([], [], [], 0.0, 0)


def occurrences(texts: Texts, string: list[int]) -> list[tuple[int, int]]:
    """(age, index) of every place where a string stands."""
    size = len(string)
    return [(n, i) for n, t in texts.items() for i in range(len(t) - size + 1) if t[i : i + size] == string]


def kids(texts: Texts, string: list[int], depth: int) -> list[tuple[int, float]]:
    """(token, share of the string's occurrences it follows), best first; of equals the one last seen longest ago."""
    found = occurrences(texts, string)
    followers: dict[int, list[tuple[int, int]]] = {}
    for n, i in found:
        if len(string) < depth and i + len(string) < len(texts[n]):
            followers.setdefault(texts[n][i + len(string)], []).append((n, i))
    ranked = sorted(followers.items(), key=lambda entry: (-len(entry[1]), max(entry[1])))
    return [(token, len(places) / len(found)) for token, places in ranked]


def walk(texts: Texts, string: list[int], depth: int, budget: int, least: float, width: int) -> Slow:
    """Take the most probable next token again and again; with one kid a node that is the greedy path."""
    tokens: list[int] = []
    parents: list[int] = []
    probs: list[float] = []
    order, open_ = count(), []

    def offer(string: list[int], prob: float, parent: int) -> None:
        for token, share in kids(texts, string, depth)[:width]:
            if prob * share >= least - NEAR:
                open_.append((-prob * share, next(order), [*string, token], parent))

    offer(string, 1.0, -1)
    while open_ and len(tokens) < budget:
        best = min(open_)
        open_.remove(best)
        prob, _, string, parent = best
        tokens.append(string[-1])
        parents.append(parent)
        probs.append(-prob)
        offer(string, -prob, len(tokens) - 1)
    return Slow(tokens, parents, probs, sum(probs), 0)


def draft(
    texts: Texts, context: list[int], depth: int, most: int, factor: float, offset: float, least: float, width: int
) -> Slow:
    """The best draft over all match lengths; of equals the longer match."""
    context, best = context[-depth:], NOTHING
    for m in range(1, len(context)):
        if not occurrences(texts, context[-m:]):
            break
        budget = max(0, min(most, int(m * factor + offset + 1e-6)))
        found = walk(texts, context[-m:], depth, budget, least, width)
        if found.tokens and found.score > best.score - NEAR:
            best = found._replace(match_len=m)
    return best


class SlowCache:
    """The cache as lists."""

    def __init__(self, depth: int, max_requests: int) -> None:
        self.depth, self.max_requests = depth, max_requests
        self.active: dict[str, tuple[list[int], str]] = {}
        self.cached: dict[str, tuple[str, int, list[int]]] = {}
        self.born = count()

    def start(self, name: str, prompt: list[int], tenant: str) -> None:
        self.cached.pop(name, None)
        self.active[name] = list(prompt), tenant
        if self.max_requests != 0:
            self.cached[name] = tenant, next(self.born), []
            while 0 <= self.max_requests < len(self.cached):
                del self.cached[next(iter(self.cached))]

    def append(self, name: str, tokens: list[int]) -> None:
        self.active[name][0].extend(tokens)
        if name in self.cached:
            self.cached[name][2].extend(tokens)

    def stop(self, name: str) -> None:
        del self.active[name]

    def evict(self, name: str) -> None:
        del self.cached[name]

    def shared(self, tenant: str) -> Texts:
        return {n: text for owner, n, text in self.cached.values() if owner == tenant}

    def speculate(
        self, name: str, context: list[int] | None, most: int, factor: float, offset: float, least: float, width: int
    ) -> Slow:
        text, tenant = self.active[name]
        context = text if context is None else context
        own = draft({0: text}, context, self.depth, most, factor, offset, least, width)
        shared = draft(self.shared(tenant), context, self.depth, most, factor, offset, least, width)
        return own if own.score >= shared.score - NEAR else shared
