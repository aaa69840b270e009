"""Exact mode held to its promise: every way of serving gives the text of each request alone and plain.

    python tests/helpers/exact_matrix.py PROMPTS.jsonl [--device cuda] [--tokens 128] [--methods ngram eagle3]

Each line of the file has a "prompt". Greedy answers and seeded ones at 0.8; requests together, in small chunks, short
of blocks so that they are preempted, and once more on a cache that holds their prefixes. Prints a line for each cell
and the number of answers that differ, which should be none; `--mode default` is the control without exact mode.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from augury import LLM, SamplingParams

LOOK_UP = {"num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
SPECS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "ngram": {"method": "ngram", **LOOK_UP},
    "ngram_gpu": {"method": "ngram_gpu", **LOOK_UP},
    "suffix": {"method": "suffix", "num_speculative_tokens": 8},
    "eagle3": {"method": "eagle3", "num_speculative_tokens": 4},
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 3},
}
WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "small chunks": {"max_num_batched_tokens": 96, "max_num_seqs": 32},
    "preempted": {"num_gpu_blocks_override": 600},
}


def answers(llm: LLM, prompts: list[Any], temperature: float, tokens: int) -> list[Any]:
    """Token ids."""
    asked = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=tokens, ignore_eos=True) for i in range(len(prompts))
    ]
    return [out.outputs[0].token_ids for out in llm.chat(prompts, asked, use_tqdm=False)]


def engine(given: argparse.Namespace, method: str, way: dict[str, Any], first: LLM | None) -> LLM:
    """An engine of this method, on the first one's weights."""
    spec = SPECS[method]
    if method == "draft_model" and spec is not None:
        spec = {**spec, "model": given.model}
    room: dict[str, Any] = {"max_model_len": 1024, "max_num_seqs": 64, "num_gpu_blocks_override": 6000, **way}
    return LLM(
        given.model,
        device=given.device,
        dtype=given.dtype,
        exact=given.mode == "exact",
        speculative_config=spec,
        weights_of=first,
        **room,
    )


def cells(given: argparse.Namespace, prompts: list[Any]) -> Iterator[dict[str, Any]]:
    """Every method and way against plain decoding of one request at a time."""
    alone = engine(given, "plain", {"max_num_seqs": 1}, None)
    expected = {t: answers(alone, prompts, t, given.tokens) for t in given.temperatures}
    for method in given.methods:
        for way, room in WAYS.items():
            llm = engine(given, method, room, alone)
            for temperature, texts in expected.items():
                llm.reset_prefix_cache()
                for cache in ("cold", "warm"):
                    got = answers(llm, prompts, temperature, given.tokens)
                    stats = llm.engine.stats
                    yield {
                        "method": method,
                        "way": way,
                        "temperature": temperature,
                        "cache": cache,
                        "answers": len(got),
                        "differ": sum(a != b for a, b in zip(got, texts, strict=True)),
                        "preemptions": stats.preemptions,
                        "length": round(stats.spec.acceptance_length, 2) if method != "plain" else 1.0,
                    }
            del llm


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", default="default")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--mode", choices=["exact", "default"], default="exact")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--most", type=int, default=200, help="prompts")
    parser.add_argument("--methods", nargs="*", default=list(SPECS))
    parser.add_argument("--temperatures", type=float, nargs="*", default=[0.0, 0.8])
    given = parser.parse_args()
    lines = given.prompts.read_text().splitlines()[: given.most]
    prompts = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines]
    wrong = 0
    for cell in cells(given, prompts):
        wrong += cell["differ"]
        print(json.dumps(cell), flush=True)
    print(f"{wrong} answers differ")


if __name__ == "__main__":
    main()
