"""Train Medusa heads on a model's answers to two prompts, load them like a published drafter, and use them.

Heads that are tested on the prompts they were trained on show that everything works, not how good the method is.

    python examples/trained_head.py [MODEL] [MAX_TOKENS] [STEPS]
"""

import sys

from augury import LLM, SamplingParams
from augury.model.store import resolve
from augury.train.gates import Gates

PROMPTS = ["Name three rivers of Europe.", "Why is the sky blue?"]


def main(model: str = "default", max_tokens: int = 48, steps: int | None = None) -> None:
    plain = LLM(model)
    prompts = [plain.tokenizer.encode(prompt) for prompt in PROMPTS]
    head = Gates(resolve(model), prompts, max_tokens).train("medusa", steps)
    print(f"trained for {head.seconds} s, loss {head.loss:.3f}, saved in {head.directory}")
    spec = {"method": "medusa", "model": str(head.directory), "num_speculative_tokens": 4}
    fast = LLM(model, speculative_config=spec)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    both = [llm.generate(prompts, params, use_tqdm=False) for llm in (plain, fast)]
    same = all(a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(*both, strict=True))
    print(f"same text: {same}; acceptance length {fast.engine.stats.spec.acceptance_length:.2f} of at most 5")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:4]))
