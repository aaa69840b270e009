"""A drafter of your own: a class that is named by its import path, as in vLLM.

python examples/custom_drafter.py [MODEL] [MAX_TOKENS]
"""

import sys

from augury import LLM, SamplingParams


class Echo:
    """Guesses that the text goes on as it did after the last time its newest token occurred."""

    def __init__(self, vllm_config):
        self.k = vllm_config.speculative_config.num_speculative_tokens

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        drafts = []
        for new, length, row in zip(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, strict=True):
            text = row[:length].tolist()
            before = [i for i in range(length - 1) if new and text[i] == text[-1]]
            drafts.append(text[before[-1] + 1 :][: self.k] if before else [])
        return drafts


def main(model: str = "default", max_tokens: int = 64) -> None:
    spec = {"method": "custom_class", "model": f"{__name__}.Echo", "num_speculative_tokens": 4}
    llm = LLM(model, speculative_config=spec)
    prompt = "abc abd abc abd abc"
    text = (
        llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=max_tokens), use_tqdm=False)[0].outputs[0].text
    )
    counts = llm.engine.stats.spec
    print(text)
    print(f"accepted {counts.num_accepted_tokens} of {counts.num_draft_tokens} drafted tokens")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
