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


def held_to_plain(llm: LLM, plain: LLM, prompts: list[Any]) -> None:
    """Greedy and sampled, twice each: cold, and from the prefix cache."""
    for temperature in (0.0, 0.7):
        params = [
            SamplingParams(temperature=temperature, seed=i, max_tokens=30, ignore_eos=True) for i in range(len(prompts))
        ]
        want = plainly(plain, prompts, params)
        assert ids(llm, prompts, params) == want
        assert ids(llm, prompts, params) == want
