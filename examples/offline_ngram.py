"""Offline generation, plain and with n-gram speculation: the same text, in fewer passes of the model.

python examples/offline_ngram.py [MODEL] [MAX_TOKENS]
"""

import sys

from augury import LLM, SamplingParams

PROMPT = "Repeat this line twice: the quick brown fox jumps over the lazy dog. The quick brown fox"
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4}


def main(model: str = "default", max_tokens: int = 64) -> None:
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=max_tokens)
    plain = LLM(model)
    fast = LLM(model, speculative_config=NGRAM)
    texts = [llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].text for llm in (plain, fast)]
    spec = fast.engine.stats.spec
    print(texts[0])
    print(f"same text: {texts[0] == texts[1]}; passes: {plain.engine.stats.steps} plain, {fast.engine.stats.steps} now")
    print(f"accepted {spec.num_accepted_tokens} of {spec.num_draft_tokens} drafted tokens")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
