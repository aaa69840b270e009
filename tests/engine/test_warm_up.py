"""No request waits for a kernel to be compiled: a start compiles all that any request uses."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from numba.core.dispatcher import Dispatcher

from augury import LLM, SamplingParams, StructuredOutputsParams
from augury.kernels import numba_ops, threads

LONG = [number % 200 + 5 for number in range(400)]
SUFFIX = {"method": "suffix", "num_speculative_tokens": 8}
ASKED: list[tuple[list[int], int, dict[str, Any]]] = [
    (LONG, 4, {"temperature": 1.0, "seed": 1}),
    (LONG[:5], 24, {"repetition_penalty": 1.2, "presence_penalty": 0.2, "frequency_penalty": 0.1}),
    (LONG[:5], 2, {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "logit_bias": {5: 1.0}}),
    (LONG[:5], 2, {"allowed_token_ids": [9, 10], "bad_words": ["ab"], "min_tokens": 4}),
    (LONG[:5], 2, {"logprobs": 5, "prompt_logprobs": 2}),
    (LONG[:5], 2, {"structured_outputs": StructuredOutputsParams(regex="[a-z]{4}")}),
]


def compiled() -> set[tuple[str, str]]:
    """Every kernel of ours with the types it was compiled or loaded for."""
    found = [thing for thing in gc.get_objects() if isinstance(thing, Dispatcher)]
    own = [kernel for kernel in found if kernel.py_func.__module__.startswith("augury")]
    return {(kernel.py_func.__name__, str(types)) for kernel in own for types in kernel.signatures}


def test_nothing_is_compiled_after_the_start(toy_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "share_pool", lambda: 2)  # as on most machines; a worker of the tests has one
    monkeypatch.setattr(numba_ops, "set_num_threads", lambda _number: None)
    llm = LLM(str(toy_model), speculative_config=SUFFIX)
    at_start = compiled()
    for prompt, count, params in ASKED:
        llm.generate([{"prompt_token_ids": prompt}] * count, SamplingParams(max_tokens=8, **params), use_tqdm=False)
        assert compiled() - at_start == set(), params
