"""Every hybrid family under every drafter and every way of serving: tokens of `generate`, tokens of plain decoding.

    python tests/helpers/hybrid_matrix.py --prompts 200 [--families qwen3-next lfm2] [--split] [--ways NAME ...]

A family and a drafter see all the prompts, or with `--split` a family's own share of them, shared out over the ways of
serving: batches of 1, 3 and 8, chunks of 7 and 64, preemption, evicted states and blocks. Each share is asked cold and
greedy, then at temperature 0.8 with the prefix cache warm, then its first half again, greedy. An exception is counted,
never passed on.
"""

from __future__ import annotations

import argparse
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hybrid_drafters
import torch
from hybrid_cases import HYBRIDS, save_hybrid, save_with_mtp
from hybrid_runs import NGRAM, SUFFIX, SUFFIX_TREE, WIDE, Tokens, ask, engine, generated, know, random_prompts

from augury import LLM
from augury.engine import state_room

WITH_MTP = ("qwen3-next", "qwen3.5", "qwen3.5-moe")
TREE = {"tree": {"max_nodes": 10, "top_k": 3}}
NEW = 8  # tokens of an answer
FITTED = (0, 3, 4)  # prompts whose answers the drafters with weights have seen: short ones
WAYS: dict[str, dict[str, Any]] = {
    "batch 1, chunk 7": {"max_num_seqs": 1, "long_prefill_token_threshold": 7},
    "batch 1, chunk 64": {"max_num_seqs": 1, "long_prefill_token_threshold": 64},
    "batch 3, chunk 7": {"max_num_seqs": 3, "long_prefill_token_threshold": 7},
    "batch 3, chunk 64": {"max_num_seqs": 3, "long_prefill_token_threshold": 64},
    "batch 8, chunk 7": {"long_prefill_token_threshold": 7},
    "batch 8, chunk 64": {"long_prefill_token_threshold": 64},
    "preempted, blocks evicted": {"num_gpu_blocks_override": 14},
    "states evicted": {"max_num_seqs": 3, "few_states": True},
}


def prompts_of(count: int) -> Tokens:
    """Prompts of 3 to 70 tokens, the first eight those of the other tests."""
    lengths = tuple(3 + 11 * i % 68 for i in range(count - 8))
    return [*random_prompts(), *random_prompts(lengths, seed=2)] if lengths else random_prompts()[:count]


@dataclass
class Family:
    """A saved model, what `generate` says, what plain decoding samples, and drafters for it."""

    directory: Path
    plain: LLM
    prompts: Tokens
    greedy: Tokens
    sampled: Tokens
    drafters: dict[str, dict[str, Any] | None]
    ways: tuple[str, ...] = tuple(WAYS)


def make_family(name: str, directory: Path, prompts: Tokens, ways: tuple[str, ...] = tuple(WAYS)) -> Family:
    """A random model of the family, and drafters that have seen three of its answers."""
    model = save_hybrid(name, directory)
    greedy, plain = generated(model, prompts, NEW), engine(directory)
    drafters: dict[str, dict[str, Any] | None] = {
        "none": None,
        "ngram": NGRAM,
        "suffix": SUFFIX,
        "suffix, tree": SUFFIX_TREE,
        "3 of 4 right, chain": WIDE,
        "3 of 4 right, tree": WIDE,
    }
    texts, begins = [prompts[i] + greedy[i] for i in FITTED], [len(prompts[i]) for i in FITTED]
    small = hybrid_drafters.draft_model(texts, directory.with_name(f"{directory.name}-draft"))
    flash = hybrid_drafters.dflash(model, texts, begins, directory.with_name(f"{directory.name}-dflash"))
    for method, files in (("draft_model", small), ("dflash", flash)):
        spec = {"method": method, "model": str(files), "num_speculative_tokens": 4}
        drafters |= {method: spec, f"{method}, tree": {**spec, **TREE}}
    return Family(directory, plain, prompts, greedy, sample(plain, prompts, len(ways)), drafters, ways)


def shares(count: int, ways: int) -> list[slice]:
    """Which prompts are asked in which way."""
    return [slice(n * count // ways, (n + 1) * count // ways) for n in range(ways)]


def sample(plain: LLM, prompts: Tokens, ways: int) -> Tokens:
    """Plain decoding at temperature 0.8; a request's seed is its place in its share."""
    return [answer for share in shares(len(prompts), ways) for answer in ask(plain, prompts[share], 0.8, NEW)]


def with_mtp(name: str, directory: Path, prompts: Tokens, layers: int, ways: tuple[str, ...]) -> Family:
    """The same family with MTP layers in its files."""
    made = save_with_mtp(name, directory, layers)
    plain = engine(directory)
    spec = {"method": "mtp", "num_speculative_tokens": 2}
    drafters: dict[str, dict[str, Any] | None] = {
        f"mtp, {layers} layers": spec,
        f"mtp, {layers} layers, tree": {**spec, "tree": {"max_nodes": 6, "top_k": 2}},
    }
    greedy, sampled = generated(made.target, prompts, NEW), sample(plain, prompts, len(ways))
    return Family(directory, plain, prompts, greedy, sampled, drafters, ways)


@contextmanager
def few_states(wanted: bool) -> Iterator[None]:
    """Engines made within save two states at most, so most are evicted."""
    before = state_room.FEWEST, state_room.KEPT
    state_room.FEWEST, state_room.KEPT = (2, 0) if wanted else before
    try:
        yield
    finally:
        state_room.FEWEST, state_room.KEPT = before


def serve_share(family: Family, label: str, way: str, share: slice) -> Counter[str]:
    """One drafter, one way, some of the prompts: cold, warm, and the first half again."""
    settings = dict(WAYS[way])
    with few_states(settings.pop("few_states", False)):
        llm = engine(family.directory, family.plain, speculative_config=family.drafters[label], **settings)
    prompts, greedy, sampled = family.prompts[share], family.greedy[share], family.sampled[share]
    if family.drafters[label] is WIDE:
        know(llm, prompts, greedy, sampled, branching=label.endswith("tree"))
    half = -(-len(prompts) // 2)
    wrong = 0
    for given, temperature, want in (
        (prompts, 0.0, greedy),
        (prompts, 0.8, sampled),
        (prompts[:half], 0.0, greedy[:half]),
    ):
        said = ask(llm, given, temperature, NEW)
        wrong += sum(ours != theirs for ours, theirs in zip(said, want, strict=True))
    stats = llm.engine.stats
    return Counter(
        answers=2 * len(prompts) + half,
        wrong=wrong,
        accepted=stats.spec.num_accepted_tokens,
        preempted=stats.preemptions,
        hits=stats.prefix_cache_hits,
    )


def serve_every_way(family: Family, label: str) -> Counter[str]:
    """All the prompts, shared out over the ways."""
    total = Counter[str]()
    for way, share in zip(family.ways, shares(len(family.prompts), len(family.ways)), strict=True):
        try:
            total += serve_share(family, label, way, share)
        except Exception:
            traceback.print_exc()
            total["exceptions"] += 1
    return total


def families_of(name: str, room: Path, prompts: Tokens, ways: tuple[str, ...]) -> Iterator[Family]:
    """The family as it is and, where it has such, with one MTP layer and with two."""
    yield make_family(name, room / name, prompts, ways)
    for layers in (1, 2) if name in WITH_MTP else ():
        yield with_mtp(name, room / f"{name}-mtp{layers}", prompts, layers, ways)


def main() -> None:
    """Print a line for every family and drafter."""
    options = argparse.ArgumentParser()
    options.add_argument("--prompts", type=int, default=200)
    options.add_argument("--families", nargs="*", default=list(HYBRIDS))
    options.add_argument("--split", action="store_true", help="share the prompts out over all families: a tenth each")
    options.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS), help="three prompts rarely preempt")
    options.add_argument("--drafters", nargs="*", default=[], help="by the names of the lines; none: all")
    given = options.parse_args()
    torch.set_num_threads(1)
    prompts, total = prompts_of(given.prompts), Counter[str]()
    with tempfile.TemporaryDirectory() as room:
        for name in given.families:
            own = shares(len(prompts), len(HYBRIDS))[list(HYBRIDS).index(name)] if given.split else slice(None)
            for family in families_of(name, Path(room), prompts[own], tuple(given.ways)):
                for label in [name for name in family.drafters if name in given.drafters or not given.drafters]:
                    found = serve_every_way(family, label)
                    total += found
                    print(f"{name} | {label} | {dict(found)}", flush=True)
    print(f"together: {dict(total)}")


if __name__ == "__main__":
    main()
