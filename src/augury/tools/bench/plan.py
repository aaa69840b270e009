"""What a bench was asked to do, and what every bench needs for it: weights, token ids, conditions."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augury.tools.shared.prompts import load_prompts


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What the command line asked for, checked."""

    model: str
    peers: list[str]
    batches: list[int]
    prompts: list[str]
    max_tokens: int
    rounds: int
    threads: int
    dtype: str
    configs: list[dict[str, Any]]  # a speculative_config for each of Augury's contenders that speculate
    ranks: int = 1  # tensor-parallel ranks of Augury's contenders

    @property
    def speculative(self) -> dict[str, Any]:
        """The first configuration, for benches that measure only one."""
        return self.configs[0]


def tokenize(sets: list[str], directory: str) -> dict[str, list[list[int]]]:
    """Token ids of every prompt of every set, through the model's chat template."""
    from augury.model.tokenizer import Tokenizer

    loaded = {name: load_prompts(name) for name in sets}
    tokenizer = Tokenizer(Path(directory))
    return {
        name: [tokenizer.chat(prompt.messages(), **prompt.template_options()) for prompt in every]
        for name, every in loaded.items()
    }


def find_weights(model: str, quiet: bool) -> tuple[str, str | None]:
    """The weights as a directory for transformers and Augury, and as a GGUF file for llama.cpp if there is one."""
    from augury.model.store import DEFAULT, pull_default, resolve

    directory = str(resolve(model, quiet))
    if model == DEFAULT:
        return directory, str(pull_default(quiet))
    return directory, model if model.endswith(".gguf") else None


def is_packed(directory: str, dtype: str) -> bool:
    """Whether Augury can run the weights in the packed form of their file."""
    from augury.model.packed import PACKED_FILE

    return dtype == "float32" and (Path(directory) / PACKED_FILE).is_file()


def conditions_of(plan: BenchPlan, counts: dict[str, int], gguf: str | None) -> dict[str, Any]:
    """What the figures depend on."""
    from augury.observe.machine import cpu_name, how_threads_wait
    from augury.tools.bench.screen import versions

    return {
        "cpu": cpu_name(),
        "threads": plan.threads,
        "tensor_parallel_size": plan.ranks,
        "versions": versions(),
        "model": plan.model,
        "dtype": plan.dtype,
        "gguf": Path(gguf).name if gguf else None,
        "prompts": counts,
        "batches": plan.batches,
        "max_tokens": plan.max_tokens,
        "temperature": 0.0,
        "speculative_config": plan.speculative,
        "more_speculative_configs": plan.configs[1:],
        "rounds": plan.rounds,
        "openmp_wait_policy": how_threads_wait(),
    }


def limit_threads(threads: int) -> None:
    """Limit an engine's threads by the environment, which libraries read as they load, or by torch if it has loaded."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(threads)
        return
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads)))
