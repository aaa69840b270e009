"""Suites about the text: an answer obtained in another way must be the same answer."""

from __future__ import annotations

from typing import Any

from augury.tools.certify.suite.ask import Said, at_once
from augury.tools.certify.suite.cells import NotCertified
from augury.tools.certify.suite.pair import CROWDS, Pair
from augury.tools.certify.suite.prompts import ENDINGS, logbook

SHARED_WORDS = 216  # of a common beginning that a prefix cache can keep
PREEMPTIONS = "vllm:num_preemptions"
PREFIX_HITS = "vllm:prefix_cache_hits"


def greedy(pair: Pair) -> dict[str, Any]:
    """The plain server and the speculative one give the same greedy answers."""
    plain, tally = pair.baseline(), pair.tally()
    for prompt in pair.plan.prompts:
        tally.same("plain against speculative", prompt, plain.greedy(prompt), pair.fast.greedy(prompt))
    return tally.figures()


def replay(pair: Pair) -> dict[str, Any]:
    """A, B, A with a common beginning: what the prefix cache keeps does not change the answer."""
    tally, hits = pair.tally(), pair.fast.endpoint.counters(PREFIX_HITS)[0]
    prompts = [logbook(SHARED_WORDS, ending) for ending in ENDINGS]
    first = [pair.fast.greedy(prompt) for prompt in prompts]
    again = [pair.fast.greedy(prompt) for prompt in prompts]
    for prompt, one, other in zip(prompts, first, again, strict=True):
        tally.same("asked again after others", prompt, one, other)
    if pair.plain is not None:
        for prompt, one in zip(prompts, again, strict=True):
            tally.same("plain against asked again", prompt, pair.plain.greedy(prompt), one)
    after = pair.fast.endpoint.counters(PREFIX_HITS)[0]
    told = {} if hits is None or after is None else {"prefix_hits": round(after - hits)}
    return tally.figures() | told


def long(pair: Pair) -> dict[str, Any]:
    """A long prompt gets the same answer twice, and from both servers."""
    tally = pair.tally()
    prompts = [logbook(pair.plan.long_words, ending) for ending in ENDINGS[:2]]
    first = [pair.fast.greedy(prompt) for prompt in prompts]
    for prompt, one in zip(prompts, first, strict=True):
        tally.same("long, asked again", prompt, one, pair.fast.greedy(prompt))
        if pair.plain is not None:
            tally.same("long, plain against speculative", prompt, pair.plain.greedy(prompt), one)
    return tally.figures() | {"prompt_words": len(prompts[0].split())}


def concurrency(pair: Pair) -> dict[str, Any]:
    """Concurrent requests, whole and streamed, get the answers that each gets alone."""
    tally, prompts = pair.tally(), list(pair.plan.prompts)
    alone = [pair.fast.greedy(prompt) for prompt in prompts]
    many = [i % len(prompts) for i in range(max(2, pair.plan.in_flight))]
    for way, ask in (("whole", pair.fast.greedy), ("streamed", pair.fast.stream)):
        for i, got in zip(many, at_once(ask, [prompts[i] for i in many]), strict=True):
            tally.same(f"alone against {len(many)} at once, {way}", prompts[i], alone[i], got)
    return tally.figures() | {"at_once": len(many)}


def preemption(pair: Pair) -> dict[str, Any]:
    """More requests at once than there is memory for: those that are preempted and resumed keep their answers."""
    tally, size = pair.tally(), CROWDS * pair.plan.in_flight
    words = pair.plan.long_words // (2 * CROWDS)  # short prompts and long answers: what is admitted must grow

    def ask(prompt: str) -> Said:
        return pair.fast.complete(prompt, max_tokens=2 * pair.plan.max_tokens)[0]

    prompts = [f"Logbook {i}.\n{logbook(words, ENDINGS[i % len(ENDINGS)])}" for i in range(size)]
    before = pair.fast.endpoint.counters(PREEMPTIONS)[0]
    crowd = at_once(ask, prompts)
    after = pair.fast.endpoint.counters(PREEMPTIONS)[0]
    for prompt, got in zip(prompts, crowd, strict=True):
        tally.same(f"alone against {size} at once", prompt, ask(prompt), got)
    figures = tally.figures() | {"at_once": size}
    if before is None or after is None:
        raise NotCertified(f"{size} answers at once were right; the metrics do not say whether any was preempted")
    if after == before:
        advice = "give the server fewer blocks (--num-gpu-blocks-override), or raise --batch"
        raise NotCertified(f"{size} answers at once were right, and none was preempted; {advice}")
    return figures | {"preemptions": round(after - before)}
