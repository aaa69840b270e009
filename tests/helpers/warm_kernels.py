"""Compile the CPU kernels that most tests use, once: `make test` runs this while the types are checked.

Otherwise every worker and every server that the tests start on a fresh clone compiles them again, side by side.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import save_toy

from augury import LLM, SamplingParams
from augury.model.store import resolve

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
STANDARD = NGRAM | {"rejection_sample_method": "standard"}


def main() -> None:
    """Engines of each kind of matrix, drafter and rule, each asked for one plain and one edited answer."""
    with tempfile.TemporaryDirectory() as folder:
        toy = save_toy(Path(folder))
        embedded = resolve("default", quiet=True)
        sampled = {"method": "draft_model", "model": str(toy), "draft_sample_method": "probabilistic"}
        for model, dtype, spec in (
            (embedded, "auto", {"method": "suffix"}),
            (embedded, "auto", {"method": "eagle3", "num_speculative_tokens": 3}),
            (embedded, "bfloat16", NGRAM),
            (toy, "float32", STANDARD),
            (toy, "float32", sampled | {"num_speculative_tokens": 3, "rejection_sample_method": "standard"}),
        ):
            answer(LLM(str(model), dtype=dtype, device="cpu", max_model_len=256, speculative_config=spec))


def answer(llm: LLM) -> None:
    """Greedy, sampled, and with every edit of the logits."""
    edited = SamplingParams(temperature=0.7, top_k=9, top_p=0.9, min_p=0.01, presence_penalty=0.1, logprobs=2)
    every = [SamplingParams(temperature=0), SamplingParams(temperature=0.8), edited]
    for params in every:
        params.max_tokens = 4
    for params in (*every, every):
        llm.generate("abcabcabc" if params is not every else ["abcabcabc"] * len(every), params, use_tqdm=False)


if __name__ == "__main__":
    main()
