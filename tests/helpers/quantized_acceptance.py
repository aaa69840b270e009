"""What 8 bits cost a drafter: `python quantized_acceptance.py MODEL [DRAFTER [DEVICE]]` prints a line of JSON.

Mean acceptance length (tokens a step and request) of EAGLE-3 on greedy answers, with plain weights, rounded ones, 8-bit
keys and values, and both. DRAFTER is a directory; without it the installed drafter is taken.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from augury import LLM, SamplingParams

PROMPTS = [
    "Write a Python function that merges two sorted lists.",
    "Explain in three sentences why the sky is blue.",
    "List ten European capitals with their countries.",
    "What is 17 times 23? Show each step.",
    "Write a short letter that asks a landlord to repair a window.",
    "Translate to French: the train leaves at nine and arrives at noon.",
    "Summarise the plot of Romeo and Juliet.",
    "Give me a recipe for pancakes with exact quantities.",
]
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp8 weights": {"quantization": "fp8"},
    "fp8 KV": {"kv_cache_dtype": "fp8"},
    "both": {"quantization": "fp8", "kv_cache_dtype": "fp8"},
}


def length(model: str, drafter: str | None, device: str, **eight: Any) -> dict[str, float]:
    """One way's, and its counts."""
    spec = {"method": "eagle3", "num_speculative_tokens": 3, **({"model": drafter} if drafter else {})}
    llm = LLM(model, device=device, load_format="safetensors", speculative_config=spec, max_model_len=1024, **eight)
    params = SamplingParams(temperature=0.0, max_tokens=128, ignore_eos=True)
    llm.chat([[{"role": "user", "content": prompt}] for prompt in PROMPTS], params, use_tqdm=False)
    stats = llm.engine.stats.spec
    return {"length": stats.acceptance_length, "drafts": stats.num_drafts}


if __name__ == "__main__":
    drafter, device = (sys.argv[2] if len(sys.argv) > 2 else None) or None, sys.argv[3] if len(sys.argv) > 3 else "cuda"
    print(json.dumps({name: length(sys.argv[1], drafter, device, **eight) for name, eight in WAYS.items()}))
