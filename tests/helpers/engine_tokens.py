"""What a toy model says with one face of the kernels: `python engine_tokens.py MODEL DEVICE K...` prints it as JSON.

A face is chosen once a process, so a test that compares two of them starts this for the other one.
"""

from __future__ import annotations

import json
import os
import sys

from augury import LLM, SamplingParams
from augury.engine.warm_up import warm_up_prompts

PROMPTS = ["abcabc", "12"]
LAWS = ({"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.3})


def say(model: str, device: str, k: int, new: int = 4) -> dict[str, list[list[int]]]:
    """Token ids by law, a list a prompt; with k > 0 the model drafts k tokens for itself."""
    spec = {"method": "draft_model", "model": model, "num_speculative_tokens": k} if k else None
    llm = LLM(model, device=device, dtype="float32", max_model_len=32, max_num_seqs=2, speculative_config=spec)
    warm_up_prompts(llm.engine.runner, 2, 12)  # as an engine on a GPU begins; text must not depend on it
    said = {}
    for law in LAWS:
        params = [SamplingParams(max_tokens=new, ignore_eos=True, seed=seed, **law) for seed in range(len(PROMPTS))]
        said[str(law)] = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    said["grammars"] = _in_form(llm)
    return said | ({"accepted": [[llm.engine.stats.spec.num_accepted_tokens]]} if k else {})


def _in_form(llm: LLM) -> list[list[int]]:
    """As on a GPU, a pass begins before its masks are made; one answer ends while the other goes on."""
    llm.engine.depth, llm.engine.state.tracks = 1, True
    if llm.engine.state.masks is None:
        llm.engine.state.make_masks()
    forms = [SamplingParams(max_tokens=7, seed=5, structured_outputs={"regex": f"[ab]{{{n}}}c"}) for n in (2, 6)]
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, forms, use_tqdm=False)]


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET") == "1":
        import interpreter  # noqa: F401
    print(json.dumps({k: say(sys.argv[1], sys.argv[2], int(k)) for k in sys.argv[3:]}))
