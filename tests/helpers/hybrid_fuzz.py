"""A differential fuzzer for hybrid targets: random engines, drafts and requests against plain decoding, one at a time.

    python tests/helpers/hybrid_fuzz.py --cases 200 --first 0

Every case is made from its number. Requests come and go at random times, some are aborted, prompts begin alike, blocks
are few; each answer must be what an engine says that runs one request at a time, without drafts or a prefix cache, and
the greedy ones what transformers' `generate` says.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from hybrid_cases import HYBRIDS, save_hybrid
from hybrid_runs import NGRAM, SUFFIX, SUFFIX_TREE, VOCAB, WIDE, confirmed, engine, know

from augury import LLM, SamplingParams

LONGEST, MOST_NEW = 60, 24
ROOM = {"max_model_len": LONGEST + MOST_NEW}
DRAFTS: dict[str, Any] = {
    "none": None,
    "ngram": NGRAM,
    "suffix": SUFFIX,
    "suffix tree": SUFFIX_TREE,
    "chain": WIDE,
    "tree": WIDE,
}


class Asked(NamedTuple):
    """One request."""

    prompt: tuple[int, ...]
    temperature: float
    seed: int
    new: int

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature, seed=self.seed, max_tokens=self.new, ignore_eos=True, detokenize=False
        )


@dataclass
class Oracle:
    """What a family says, asked once for every request."""

    directory: Path
    model: Any
    plain: LLM
    known: dict[Asked, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, directory: Path) -> Oracle:
        """A random model of the family."""
        model = save_hybrid(name, directory)
        return cls(directory, model, engine(directory, max_num_seqs=1, enable_prefix_caching=False, **ROOM))

    def answer(self, asked: Asked) -> list[int]:
        """Plain decoding's, which for greedy requests is held to transformers', in one pass."""
        if asked not in self.known:
            [output] = self.plain.generate({"prompt_token_ids": list(asked.prompt)}, asked.params, use_tqdm=False)
            self.known[asked] = list(output.outputs[0].token_ids)
            if asked.temperature == 0:
                [theirs] = confirmed(self.model, [list(asked.prompt)], [self.known[asked]], whole=0)
                assert self.known[asked] == theirs, f"plain decoding is not generate's: {asked}"
        return self.known[asked]


@dataclass
class Found:
    """What a case went through."""

    wrong: list[str] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)


def draw_requests(random: Random) -> list[Asked]:
    """Prompts that begin alike more often than not."""
    stems = [[random.randrange(5, VOCAB) for _ in range(random.randrange(1, 40))] for _ in range(3)]
    asked = []
    for _ in range(random.randrange(3, 10)):
        stem = random.choice(stems)
        prompt = stem[: random.randrange(1, len(stem) + 1)] if random.random() < 0.3 else stem
        prompt = [*prompt, *(random.randrange(5, VOCAB) for _ in range(random.choice((0, 0, 3, 20))))]
        temperature = random.choice((0.0, 0.0, 0.8, 1.2))
        asked.append(Asked(tuple(prompt[:LONGEST]), temperature, random.randrange(3), random.randrange(1, MOST_NEW)))
    return asked


def draw_settings(random: Random) -> dict[str, Any]:
    """An engine's; blocks for the longest text at least, and often for no more: two that grow preempt each other."""
    size = random.choice((1, 3, 4, 8, 16))
    settings: dict[str, Any] = {"block_size": size, "max_num_seqs": random.choice((1, 3, 8, 8)), **ROOM}
    if random.random() < 0.7:
        settings["num_gpu_blocks_override"] = -(-(LONGEST + MOST_NEW) // size) + random.choice((1, 1, 2))
    if random.random() < 0.5:
        settings["long_prefill_token_threshold"] = random.choice((1, 7, 16))
    if random.random() < 0.3:
        settings["max_num_batched_tokens"] = random.choice((8, 13, 64))
    if random.random() < 0.15:
        settings["enable_prefix_caching"] = False
    return settings


def serve(llm: LLM, asked: list[Asked], random: Random, found: Found) -> dict[int, list[int]]:
    """Read streams in random turns, begun at random times; the whole answers of those that were not aborted."""
    waiting, open_streams = list(range(len(asked))), dict[int, Iterator[Any]]()
    said: dict[int, list[int]] = {i: [] for i in waiting}
    whole = {}
    while waiting or open_streams:
        if waiting and (not open_streams or random.random() < 0.8):
            i = waiting.pop(0)
            open_streams[i] = llm.stream({"prompt_token_ids": list(asked[i].prompt)}, asked[i].params)
        i = random.choice(list(open_streams))
        if random.random() < 0.02:
            open_streams.pop(i).close()  # type: ignore[attr-defined]
            found.counted["aborted"] += 1
        elif (update := next(open_streams[i], None)) is None:
            del open_streams[i]
            whole[i] = said[i]
        else:
            said[i] += update.tokens
    return whole


def run_case(number: int, oracle: Oracle) -> Found:
    """One engine, two rounds of requests: the second finds what the first has left in its caches."""
    random, found = Random(number), Found()
    [drafts], settings = random.choices(list(DRAFTS), (1, 1, 1, 2, 3, 4)), draw_settings(random)
    llm = engine(oracle.directory, oracle.plain, **settings, speculative_config=DRAFTS[drafts])
    rounds = [draw_requests(random)]
    rounds.append([*random.sample(rounds[0], min(3, len(rounds[0]))), *draw_requests(random)[:4]])
    if drafts in ("chain", "tree"):
        every = [one for asked in rounds for one in asked]
        prompts, answers = [list(one.prompt) for one in every], [oracle.answer(one) for one in every]
        know(llm, prompts, answers, branching=drafts == "tree", seed=number)
    for asked in rounds:
        for i, tokens in serve(llm, asked, random, found).items():
            found.counted["requests"] += 1
            found.counted["tokens"] += len(tokens)
            if tokens != oracle.answer(asked[i]):
                found.wrong.append(f"case {number}: {drafts} {settings} {asked[i]}: {tokens}")
        llm.engine.scheduler.check()
    stats = llm.engine.stats
    found.counted.update(preempted=stats.preemptions, accepted=stats.spec.num_accepted_tokens)
    found.counted["cached"] += stats.prefix_cache_hits
    return found


def main() -> None:
    """Run cases of all families in turn, and say what they went through."""
    options = argparse.ArgumentParser()
    options.add_argument("--cases", type=int, default=100)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--families", nargs="*", choices=HYBRIDS, default=list(HYBRIDS))
    given = options.parse_args()
    torch.set_num_threads(1)
    total, wrong = Counter[str](), 0
    with tempfile.TemporaryDirectory() as room:
        for name in given.families:
            place = list(HYBRIDS).index(name)
            oracle = Oracle.of(name, Path(room) / name)
            for number in range(given.first + place, given.first + given.cases, len(HYBRIDS)):
                found = run_case(number, oracle)
                total.update(found.counted, cases=1)
                wrong += len(found.wrong)
                print(*found.wrong, sep="\n", end="\n" if found.wrong else "")
            print(f"{name}: {dict(total)}, {wrong} wrong", flush=True)


if __name__ == "__main__":
    main()
