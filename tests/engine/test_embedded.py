"""The embedded model: our tokens are transformers' tokens, however they were served, with and without speculation.

AUGURY_TEST_DEVICE=cuda runs the same on a GPU.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from augury import LLM, SamplingParams

DEVICE = os.environ.get("AUGURY_TEST_DEVICE", "cpu")
FULL = "AUGURY_TEST_FULL" in os.environ
NEW_TOKENS = 128 if FULL else 48  # three blocks of the cache after the prompt's
SAMPLED_TOKENS = 128 if FULL else 24  # more than a block of the cache, found again and drawn with noise
GENERATED = 2  # prompts that transformers' generate answers; those which every variant below runs
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
QUESTIONS = [
    "Why is the sky blue?",
    "Write a haiku about rivers.",
    "List five uses of a paper clip.",
    "What is 12 times 11?",
    "Explain recursion to a child.",
    "Name the planets in order.",
    "Translate 'good morning' to French.",
    "Give me a recipe for pancakes.",
    "What causes tides?",
    "Summarise the plot of Hamlet in two sentences.",
    "Write a limerick about a cat.",
    "How do vaccines work?",
    "Suggest three names for a bakery.",
    "What is the capital of Peru?",
    "Describe a sunset without naming colours.",
    "How do I boil an egg?",
    "Write a Python function that reverses a list.",
    "What is a prime number?",
    "Tell me a joke about computers.",
    "Who was Ada Lovelace?",
]
COPYING = [
    "Repeat this line five times: the quick brown fox jumps over the lazy dog.",
    'Write this JSON again with "age" changed to 31: {"name": "Ada", "age": 30, "city": "London", "job": "engineer"}',
    "Rename x to total in this code:\ndef f(items):\n    x = 0\n    for i in items:\n        x += i\n    return x",
    "Count from one to thirty in words, one number on each line.",
]


@pytest.fixture(scope="module")
def prompts(default_model: Path) -> list[dict]:
    """8 chat prompts as token ids, 24 with AUGURY_TEST_FULL."""
    from augury.model.tokenizer import Tokenizer

    tokenizer = Tokenizer(default_model)
    chats = [[{"role": "user", "content": text}] for text in QUESTIONS[: None if FULL else 4] + COPYING]
    return [{"prompt_token_ids": tokenizer.chat(chat, add_generation_prompt=True)} for chat in chats]


@pytest.fixture(scope="module")
def plain(default_model: Path) -> LLM:
    """Plain decoding, everyone at once: what transformers is asked about, and where sampled tokens come from."""
    return load(default_model)


@pytest.fixture(scope="module")
def transformers_tokens(default_model: Path, prompts: list[dict], plain: LLM) -> list[list[int]]:
    """Transformers' own greedy tokens in float32: of a few prompts by its generate, of the rest by its argmax.

    A sequence whose every token is the argmax of one pass over all that stands before it is the one that generate
    finds, at a tenth of the time. AUGURY_TEST_FULL has generate say them all.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(default_model, dtype=torch.float32).to(DEVICE)
    rows = [p["prompt_token_ids"] for p in prompts]
    generated = len(rows) if FULL else GENERATED
    said = tokens(plain, prompts[:-generated], temperature=0)
    for row, answer in zip(rows, said, strict=False):
        assert answer == best_at_every_place(model, row, answer)
    return said + generate(model, rows[-generated:])


@torch.inference_mode()
def best_at_every_place(model: Any, prompt: list[int], answer: list[int]) -> list[int]:
    """Transformers' argmax after the prompt and each beginning of the answer, the end-of-text token barred."""
    logits = model(torch.tensor([prompt + answer[:-1]], device=DEVICE), logits_to_keep=len(answer)).logits[0]
    logits[:, model.generation_config.eos_token_id] = -torch.inf
    return logits.argmax(1).tolist()


def generate(model: Any, rows: list[list[int]]) -> list[list[int]]:
    """What transformers' generate says, all prompts in one left-padded batch."""
    width = max(map(len, rows))
    padded = torch.tensor([[0] * (width - len(r)) + r for r in rows], device=DEVICE)
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows], device=DEVICE)
    out = model.generate(
        padded,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        pad_token_id=0,
    )
    return out[:, width:].tolist()


def load(model: Path, **settings: object) -> LLM:
    return LLM(str(model), dtype="float32", device=DEVICE, max_model_len=512, **settings)


def tokens(llm: LLM, prompts: list[dict], length: int = NEW_TOKENS, **params: object) -> list[list[int]]:
    every = [drawn(seed, length, **params) for seed in range(len(prompts))]
    return [o.outputs[0].token_ids for o in llm.generate(prompts, every, use_tqdm=False)]


def drawn(seed: int, length: int, **params: object) -> SamplingParams:
    """Exactly so many tokens: transformers' min_new_tokens bars the end-of-text token, and so does min_tokens here."""
    return SamplingParams(seed=seed, max_tokens=length, min_tokens=length, **params)


@pytest.fixture(scope="module")
def sampled_tokens(prompts: list[dict], plain: LLM) -> list[list[int]]:
    """Plain decoding at temperature 0.8, everyone at once."""
    return tokens(plain, prompts, SAMPLED_TOKENS, temperature=0.8)


# (settings, prompts to run, counted from the last): enough that some wait for a place, and the last four, whose chunks
# differ, are the long ones. All prompts are decoded plainly by the fixtures and with drafts by one variant; by every
# variant with AUGURY_TEST_FULL.
SERVED = {
    "plain, 4 at a time": ({"max_num_seqs": 4}, 5),
    "ngram, 6 at a time": ({"max_num_seqs": 6, "speculative_config": NGRAM}, len(QUESTIONS + COPYING)),
    "plain, one by one": ({"max_num_seqs": 1}, 2),
    "ngram, one by one": ({"max_num_seqs": 1, "speculative_config": NGRAM}, 2),
    "ngram, 3 at a time": ({"max_num_seqs": 3, "speculative_config": NGRAM}, 4),
    "chunks of 7": ({"long_prefill_token_threshold": 7, "speculative_config": NGRAM}, 3),
    "chunks of 64": ({"long_prefill_token_threshold": 64, "speculative_config": NGRAM}, 3),
    "chunks of 4096": ({"max_num_batched_tokens": 4096, "speculative_config": NGRAM}, 2),
    "tiny cache": ({"num_gpu_blocks_override": 35, "max_num_seqs": 6, "speculative_config": NGRAM}, 7),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_tokens_are_transformers_own_and_speculation_changes_none(
    name: str,
    default_model: Path,
    plain: LLM,
    prompts: list[dict],
    transformers_tokens: list[list[int]],
    sampled_tokens: list[list[int]],
) -> None:
    settings, count = SERVED[name]
    llm = load(default_model, weights_of=plain, **settings)
    chosen = range(len(prompts))[-(len(prompts) if FULL else count) :]
    some = [prompts[i] for i in chosen]
    assert tokens(llm, some, temperature=0) == [transformers_tokens[i] for i in chosen]  # prefix cache cold
    # The second run finds its prompts in the prefix cache, and draws with each request's own noise.
    every = [drawn(i, SAMPLED_TOKENS, temperature=0.8) for i in chosen]
    outputs = llm.generate(some, every, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in outputs] == [sampled_tokens[i] for i in chosen]
    if name == "tiny cache":
        assert llm.engine.stats.preemptions > 0
    else:
        assert any(o.num_cached_tokens for o in outputs)
    if "speculative_config" in settings:
        assert llm.engine.stats.spec.num_accepted_tokens > 0


@pytest.mark.slow
@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU exactness needs fixed row buckets, which come with its kernels")
def test_bfloat16_is_exact_with_and_without_speculation(default_model: Path, prompts: list[dict]) -> None:
    """Our CPU matrices treat each row alone, so equality is exact here, not just free of near-ties."""
    settings = {"dtype": "bfloat16", "device": DEVICE, "max_model_len": 512}
    some, length = (prompts[-8:], NEW_TOKENS) if FULL else (prompts[-4:], SAMPLED_TOKENS)
    plain = LLM(str(default_model), **settings)
    fast = LLM(str(default_model), weights_of=plain, speculative_config=NGRAM, **settings)
    assert tokens(plain, some, length, temperature=0.8) == tokens(fast, some, length, temperature=0.8)
    assert fast.engine.stats.spec.num_draft_tokens > 0
