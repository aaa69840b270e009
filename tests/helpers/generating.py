"""What tests of drafters share: answers as token ids, and the ways of serving that must not change them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from augury import LLM, SamplingParams

DEVICE = os.environ.get("AUGURY_TEST_DEVICE", "cpu")
PROMPTS = ["abcabcabc", "hello hello", "z", "the cat sat on the mat and the cat sat", "12121", "qqqq", "x y x y", "end"]


def ids(llm: LLM, prompts: list[Any], params: SamplingParams | list[SamplingParams]) -> list[list[int]]:
    """The answers' tokens; afterwards every block must be free again."""
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert llm.engine.scheduler.pool.num_free == llm.engine.scheduler.pool.num_blocks
    return [output.outputs[0].token_ids for output in outputs]


def encoded(toy_model: Path, prompts: list[str]) -> list[list[int]]:
    """Prompts as the tokens of a model's own tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(toy_model)
    return [tokenizer.encode(prompt) for prompt in prompts]


_PLAIN: WeakKeyDictionary[LLM, dict[str, list[list[int]]]] = WeakKeyDictionary()


def plainly(plain: LLM, prompts: list[Any], params: SamplingParams | list[SamplingParams]) -> list[list[int]]:
    """The same, asked of plain decoding once only: many ways of drafting are held against one answer."""
    kept, asked = _PLAIN.setdefault(plain, {}), repr((prompts, params))
    if asked not in kept:
        kept[asked] = ids(plain, prompts, params)
    return kept[asked]


def held_to_plain(llm: LLM, plain: LLM, prompts: list[Any], temperature: float = 0.7, length: int = 30) -> None:
    """Every other request greedy, the others sampled, cold; then the other way around, from the prefix cache.

    So each of both laws is asked of both caches in two runs, and in each of these meets the other law in its batches.
    Batches of one law alone are greedy in the tests of rejection rules, and sampled in those of what a batch changes.
    """
    for first in (0, 1):
        params = [
            SamplingParams(temperature=temperature * ((i + first) % 2), seed=i, max_tokens=length, ignore_eos=True)
            for i in range(len(prompts))
        ]
        assert ids(llm, prompts, params) == plainly(plain, prompts, params)
