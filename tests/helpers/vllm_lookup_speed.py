"""Host time of a step of vLLM's n-gram drafter and of ours, 32 requests: python tests/helpers/vllm_lookup_speed.py.

Needs vLLM, no GPU. Texts are random words by Zipf's law; every seventh step the rows change places.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from vllm_lookup_config import configuration

REQUESTS, STEPS, WARM, TOKENS = 32, 40, 5, 4
CONTEXTS = (8192, 32768, 131072)


def timed(drafter: Any, words: np.ndarray, length: int, theirs: bool) -> tuple[list[float], int]:
    """Milliseconds of each step, and the tokens drafted in the last."""
    random, texts, lengths = np.random.default_rng(1), words.copy(), np.full(REQUESTS, length, np.int32)
    times, drafted = [], 0
    for step in range(STEPS):
        more = 1 + step % 2
        lengths = lengths + more
        if step % 7 == 3:
            texts = texts[random.permutation(REQUESTS)]
        new = [texts[row, end - more : end].tolist() for row, end in enumerate(lengths)]
        given = (TOKENS, new, lengths, texts) if theirs else (new, lengths, texts)
        begun = time.perf_counter()
        found = drafter.propose(*given)
        times.append(1e3 * (time.perf_counter() - begun))
        drafted = sum(map(len, found))
    return times, drafted


def main() -> None:
    """A line for each context and drafter."""
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    from augury.plugins.vllm.lookup import Ngram, Suffix

    for length in CONTEXTS:
        words = (np.random.default_rng(0).zipf(1.3, size=(REQUESTS, length + 256)) % 50000).astype(np.int32)
        config = configuration(length + 256, num_speculative_tokens=TOKENS, prompt_lookup_max=5)
        config.scheduler_config.max_num_seqs = REQUESTS
        for made in (NgramProposer, Ngram, Suffix):
            times, drafted = timed(made(config), words, length, made is NgramProposer)
            said = {"context": length, "drafter": f"{made.__module__}.{made.__name__}", "drafted": drafted}
            median, late = (round(float(np.quantile(times[WARM:], share)), 3) for share in (0.5, 0.99))
            print(json.dumps({**said, "first_ms": round(times[0], 2), "median_ms": median, "p99_ms": late}), flush=True)


if __name__ == "__main__":
    main()
