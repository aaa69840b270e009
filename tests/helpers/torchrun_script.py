"""A script for torchrun: every process makes the same LLM, and rank 0 alone goes on from there."""

from __future__ import annotations

import json
import os
import sys

from augury import LLM, SamplingParams

if __name__ == "__main__":
    size = int(os.environ.get("WORLD_SIZE", "1"))
    llm = LLM(sys.argv[1], device="cpu", tensor_parallel_size=size, max_model_len=64, max_num_seqs=2)
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=6, ignore_eos=True)
    print(json.dumps(llm.generate("abcabc", params, use_tqdm=False)[0].outputs[0].token_ids))
