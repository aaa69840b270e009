"""Seeded texts of a real vLLM with and without speculation, by its own rule and by ours; needs vLLM and a GPU.

    export VLLM_USE_V2_MODEL_RUNNER=1
    python tests/helpers/vllm_texts.py MODEL PROMPTS.json plain eagle3 eagle3-coupled --head DIR
    VLLM_USE_V2_MODEL_RUNNER=0 python tests/helpers/vllm_texts.py MODEL PROMPTS.json plain ngram ngram-coupled

PROMPTS.json is a list of token ids for each request. One engine after the other runs in one process; all cases run on
one runner, since V1 and V2 draw other noise from one seed. docs/vllm-plugin.md has what this printed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from itertools import takewhile
from pathlib import Path
from typing import Any

QUIET = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_HUB_OFFLINE": "1"}
TOKENS, TEMPERATURE, FIRST_SEED, ROUNDS = 128, 0.8, 1000, 7
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5}


def configured(case: str, head: str) -> dict[str, Any] | None:
    """The speculative configuration that a case's name stands for."""
    kinds: dict[str, dict[str, Any] | None] = {
        "plain": None,
        "eagle3": {"method": "eagle3", "model": head, "num_speculative_tokens": 3},
        "ngram": NGRAM,
        "ours": {**NGRAM, "method": "custom_class", "model": "augury.plugins.vllm.lookup.Ngram"},
        "suffix": {**NGRAM, "method": "custom_class", "model": "augury.plugins.vllm.lookup.Suffix"},
    }
    kind, _, rule = case.partition("-")
    found = kinds[kind]
    return {**found, "rejection_sample_method": rule} if found and rule else found


def counted(llm: Any, name: str) -> float:
    """A counter of vLLM's, over all engines."""
    return sum(metric.value for metric in llm.get_metrics() if metric.name == f"vllm:spec_decode_num_{name}")


def run(case: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Texts, seconds and acceptance length of one engine."""
    from vllm import LLM, SamplingParams

    prompts = [{"prompt_token_ids": ids} for ids in json.loads(asked.prompts.read_text())]
    llm = LLM(
        model=asked.model,
        dtype="bfloat16",
        enforce_eager=asked.eager,
        max_model_len=2048,
        max_num_seqs=len(prompts),
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=configured(case, asked.head),
        gpu_memory_utilization=0.1,
    )

    def answers(temperature: float) -> tuple[list[list[int]], float]:
        seeds = range(FIRST_SEED, FIRST_SEED + len(prompts))
        params = [SamplingParams(temperature=temperature, seed=seed, max_tokens=TOKENS) for seed in seeds]
        begun = time.perf_counter()
        found = llm.generate(prompts, params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in found], time.perf_counter() - begun

    answers(TEMPERATURE)  # kernels are compiled on first use
    names = ("drafts", "accepted_tokens")
    before = [counted(llm, name) for name in names]
    rounds = [answers(TEMPERATURE) for _ in range(ROUNDS)]
    drafts, accepted = (counted(llm, name) - old for name, old in zip(names, before, strict=True))
    length = 1 + accepted / drafts if drafts else 1.0
    return {"texts": rounds[0][0], "greedy": answers(0.0)[0], "seconds": [s for _, s in rounds], "length": length}


def told(case: str, found: dict[str, Any], plain: dict[str, Any]) -> str:
    """One line: how many texts are plain decoding's, and for how long the others are."""
    same = {kind: sum(a == b for a, b in zip(plain[kind], found[kind], strict=True)) for kind in ("texts", "greedy")}
    pairs = [zip(a, b, strict=False) for a, b in zip(plain["texts"], found["texts"], strict=True)]
    alike = [sum(1 for _ in takewhile(lambda two: two[0] == two[1], pair)) for pair in pairs]
    seconds = " ".join(f"{one:.3f}" for one in found["seconds"])
    return (
        f"{case}: {same['texts']} of {len(alike)} sampled and {same['greedy']} greedy texts are plain's, alike for "
        f"{sum(alike) / len(alike):.0f} tokens on average; length {found['length']:.3f}; seconds {seconds}"
    )


def main() -> None:
    """Run every case that is named; the first must be `plain`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--head", default="")
    parser.add_argument("--eager", action="store_true")
    asked = parser.parse_args()
    os.environ.update(QUIET)
    plain = None
    for case in asked.cases:
        found = run(case, asked)
        plain = plain or found
        print(told(case, found, plain), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
