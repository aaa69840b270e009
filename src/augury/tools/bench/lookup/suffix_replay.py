"""Replays requests through a suffix cache, ours or Arctic's, in exactly the same way.

Run as a script, with a file of requests, a depth and how many requests to hold back, it prints Arctic's figures: the
Python that has Arctic need not have Augury.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

Requests = list[dict[str, list[int]]]


class CallTimes(NamedTuple):
    """Nanoseconds of every call."""

    appended: list[int]
    drafted: list[int]
    tree: list[int]


class SuffixPeer(Protocol):
    """The interface through which either suffix cache is replayed."""

    def keep(self, name: str, response: np.ndarray) -> None: ...
    def start(self, name: str, prompt: list[int]) -> None: ...
    def append(self, name: str, tokens: list[int]) -> None: ...
    def speculate(self, name: str, tail: list[int], tree: bool) -> list[int]: ...
    def stop(self, name: str) -> None: ...


class Arctic:
    """Arctic's cache."""

    def __init__(self, depth: int) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache, self.depth, self.nothing = SuffixDecodingCache(depth, -1), depth, np.empty(0, np.int32)

    def keep(self, name: str, response: np.ndarray) -> None:
        self.cache.start_request(name, self.nothing)
        self.cache.add_active_response(name, response.astype(np.int32))
        self.cache.stop_request(name)

    def start(self, name: str, prompt: list[int]) -> None:
        self.cache.start_request(name, prompt)

    def append(self, name: str, tokens: list[int]) -> None:
        self.cache.add_active_response(name, tokens)

    def speculate(self, name: str, tail: list[int], tree: bool) -> list[int]:
        ids: list[int] = self.cache.speculate(name, tail, self.depth, use_tree_spec=tree).token_ids
        return ids

    def stop(self, name: str) -> None:
        self.cache.stop_request(name)


class Ours:
    """Our cache."""

    def __init__(self, depth: int) -> None:
        from augury.index.suffix import SuffixCache

        self.cache = SuffixCache(depth, -1)

    def keep(self, name: str, response: np.ndarray) -> None:
        self.cache.add(name, response)

    def start(self, name: str, prompt: list[int]) -> None:
        self.cache.start(name, prompt)

    def append(self, name: str, tokens: list[int]) -> None:
        self.cache.append(name, tokens)

    def speculate(self, name: str, tail: list[int], tree: bool) -> list[int]:
        return self.cache.speculate(name, tree=tree).tokens

    def stop(self, name: str) -> None:
        self.cache.stop(name)


def resident() -> int:
    """Resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def replay(contender: SuffixPeer, requests: Requests, depth: int, held: int) -> dict[str, Any]:
    """Keep the responses of all but the last `held` requests, then replay those, accepting correct drafts."""
    kept = [np.array(r["response"], np.int64) for r in requests[:-held]]
    before, start = resident(), time.perf_counter()
    for i, whole in enumerate(kept):
        contender.keep(f"kept-{i}", whole)
    seconds, tokens = time.perf_counter() - start, sum(map(len, kept))
    grown = resident() - before
    times, steps, accepted = CallTimes([], [], []), 0, 0
    for i, request in enumerate(requests[-held:]):
        walked, right = _walk(contender, f"held-{i}", request, depth, times)
        steps, accepted = steps + walked, accepted + right
    return {
        "tokens": tokens,
        "build_tokens_per_s": tokens / seconds,
        "rss_per_token": grown / tokens,
        "append_us": float(np.median(times.appended)) / 1e3,
        "speculate_us": float(np.median(times.drafted)) / 1e3,
        "speculate_p99_us": float(np.percentile(times.drafted, 99)) / 1e3,
        "tree_us": float(np.median(times.tree)) / 1e3,
        "steps": steps,
        "length": 1 + accepted / steps,
    }


def _walk(
    contender: SuffixPeer, name: str, request: dict[str, list[int]], depth: int, times: CallTimes
) -> tuple[int, int]:
    """Answer one request with the cache's drafts: its steps, and the drafted tokens that were right."""
    response = request["response"]
    text, new, at = list(request["prompt"]), response[:1], 0
    steps = accepted = 0
    contender.start(name, text)
    while new:
        clock = [time.perf_counter_ns()]
        contender.append(name, new)
        clock.append(time.perf_counter_ns())
        text, at = text + new, at + len(new)
        tail = text[-depth:]
        clock.append(time.perf_counter_ns())
        draft = contender.speculate(name, tail, False)
        clock.append(time.perf_counter_ns())
        contender.speculate(name, tail, True)
        clock.append(time.perf_counter_ns())
        times.appended.append(clock[1] - clock[0])
        times.drafted.append(clock[3] - clock[2])
        times.tree.append(clock[4] - clock[3])
        right = 0
        while right < min(len(draft), len(response) - at) and draft[right] == response[at + right]:
            right += 1
        new = response[at : at + right + 1]
        steps, accepted = steps + 1, accepted + right
    contender.stop(name)
    return steps, accepted


def replay_arctic(requests: Requests, depth: int, held: int) -> dict[str, Any]:
    """Arctic's figures; an ImportError where it is not installed."""
    return replay(Arctic(depth), requests, depth, held)


def replay_ours(requests: Requests, depth: int, held: int) -> dict[str, Any]:
    """Our figures, with the memory of the index itself and the time of a step of 64 requests in one call."""
    _warm(requests[0], depth)
    figures = replay(Ours(depth), requests, depth, held)  # first: later, freed memory would be reused
    contender = Ours(depth)
    for i, request in enumerate(requests[:-held]):
        contender.keep(f"kept-{i}", np.array(request["response"], np.int64))
    figures["bytes_per_token"] = contender.cache.bytes / contender.cache.tokens
    return {**figures, **_batch(contender, requests[-64:])}


def _warm(request: dict[str, list[int]], depth: int) -> None:
    """Compile everything before a clock runs."""
    warm = Ours(depth)
    warm.keep("a", np.array(request["response"], np.int64))
    warm.start("b", request["prompt"])
    warm.append("b", request["response"])
    for tree in (False, True):
        warm.speculate("b", [], tree)
    _batch(warm, [request])
    warm.stop("b")
    warm.cache.evict("a")


def _batch(contender: Ours, requests: Requests) -> dict[str, float]:
    """Microseconds per request of a step that appends one token to each and drafts for all, and of drafting alone."""
    from augury.index.suffix_rule import SuffixRule

    groups, depth, short = len(requests), contender.cache.max_depth, min(len(r["response"]) for r in requests)
    width = max(len(r["prompt"]) for r in requests) + short
    history, lengths = np.zeros((groups, width), np.int64), np.array([len(r["prompt"]) for r in requests])
    for g, r in enumerate(requests):
        history[g, : lengths[g] + short] = r["prompt"] + r["response"][:short]
    handles = np.array([contender.cache.start(f"b{g}", r["prompt"]) for g, r in enumerate(requests)])
    rows, budget, counts = np.arange(groups), np.full(groups, depth), np.zeros(groups, np.int64)
    tokens, parents = np.zeros((groups, depth), np.int64), np.zeros((groups, depth), np.int64)
    clocks = []
    for _ in range(short):
        lengths += 1
        clock = [time.perf_counter_ns()]
        for _ in range(2):  # the second time there is nothing to append
            contender.cache.step(handles, history, rows, lengths, budget, 10**9, SuffixRule(), tokens, parents, counts)
            clock.append(time.perf_counter_ns())
        clocks.append(np.diff(clock))
    whole, drafting = np.median(clocks, axis=0) / 1e3 / groups
    return {"step64_us": float(whole), "speculate64_us": float(drafting)}


if __name__ == "__main__":
    file, at_depth, held_back = sys.argv[1:]
    asked = [json.loads(line) for line in Path(file).read_text().splitlines()]
    print(json.dumps(replay_arctic(asked, int(at_depth), int(held_back))))
