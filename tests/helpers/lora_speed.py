"""What adapters cost: `python tests/helpers/lora_speed.py` compares one batch of the base with one of four adapters.

The base is an engine without adapters, and the same engine without them in the batch; all run by turns, with the same
prompts and lengths. The figures are the ratios of the best rounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from lora_files import PROJECTIONS
from safetensors.torch import save_file

from augury import LLM, LoRARequest, SamplingParams

PROMPTS = ["Write a list of animals.", "Tell a story of the sea.", "What is a compiler?", "Name ten rivers."]


def random_adapter(llm: LLM, directory: Path, seed: int, rank: int) -> Path:
    """An adapter of all projections, by the target's own shapes: the embedded model's files hold them packed."""
    target: Any = llm.engine.target
    random, tensors = torch.Generator().manual_seed(seed), {}
    for layer, (module, (out, width)) in product(range(target.num_layers), target.adapters.shapes.items()):
        at = f"base_model.model.model.layers.{layer}.{PROJECTIONS[module]}.{module}"
        tensors[f"{at}.lora_A.weight"] = torch.randn(rank, width, generator=random) / width**0.5
        tensors[f"{at}.lora_B.weight"] = torch.randn(out, rank, generator=random) * 0.1 / rank
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    stated = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": list(PROJECTIONS)}
    (directory / "adapter_config.json").write_text(json.dumps(stated))
    return directory


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    params = SamplingParams(temperature=0, max_tokens=given.tokens, ignore_eos=True)
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(given.batch)]
    size: Any = {"max_model_len": 256, "max_num_seqs": given.batch}
    with tempfile.TemporaryDirectory() as home:
        llm = LLM(given.model, enable_lora=True, max_lora_rank=given.rank, **size)
        adapters = [random_adapter(llm, Path(home, str(i)), i, given.rank) for i in range(4)]
        mixed = [LoRARequest(f"a{i % 4}", i % 4 + 1, str(adapters[i % 4])) for i in range(given.batch)]
        bare = LLM(given.model, **size)
        ways: Any = {"an engine without adapters": (bare, None), "base": (llm, None), "four adapters": (llm, mixed)}
        best: dict[str, float] = {}
        for turn in range(given.rounds + 1):
            for name, (engine, loras) in ways.items():
                engine.reset_prefix_cache()
                begun = time.perf_counter()
                engine.generate(prompts, params, use_tqdm=False, lora_request=loras)
                speed = given.batch * given.tokens / (time.perf_counter() - begun)
                if turn:  # the first warms up
                    best[name] = max(best.get(name, 0.0), speed)
    for name, speed in best.items():
        ratio = best["four adapters"] / speed
        print(f"{name}: {speed:.1f} tokens/s; four adapters have {ratio:.3f} of it")
    print(f"(batch {given.batch}, rank {given.rank}, 7 projections)")


if __name__ == "__main__":
    main()
