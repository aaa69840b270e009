"""Draft a tree instead of a chain: several guesses for one place are checked in the same pass.

python examples/tree.py [MODEL] [MAX_TOKENS]
"""

import sys

from augury import LLM, SamplingParams

PROMPT = "one two three, one two four, one two three, one two five, one two"
CHAIN = {"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_cached_requests": 0}
TREE = CHAIN | {"tree": {"max_nodes": 16, "top_k": 3}}


def main(model: str = "default", max_tokens: int = 64) -> None:
    plain = LLM(model)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    for name, spec in (("plain", None), ("chain", CHAIN), ("tree", TREE)):
        llm = LLM(model, speculative_config=spec) if spec else plain
        text = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].text
        print(f"{name}: {llm.engine.stats.steps} passes, {text!r}")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
