"""Engines on hybrid models, asked for token ids, and what transformers' `generate` says to the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from random_trees import RandomTrees

from augury import LLM, SamplingParams

NEW = 16
VOCAB = 101
LENGTHS = (5, 23, 40, 3, 9, 17, 31, 70)
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 6, "suffix_decoding_min_token_prob": 0.0}
SUFFIX_TREE = {**SUFFIX, "tree": {"max_nodes": 10, "top_k": 3}}
WIDE = {**NGRAM, "num_speculative_tokens": 12}  # room for whoever drafts in its place
Tokens = list[list[int]]


def random_prompts(lengths: tuple[int, ...] = LENGTHS, seed: int = 1) -> Tokens:
    """Random tokens; the second prompt repeats itself."""
    random = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(5, VOCAB, (n,), generator=random).tolist() for n in lengths]
    if len(prompts) > 1:
        prompts[1] = (prompts[1][:6] * 4)[: lengths[1]]
    return prompts


def generated(model: Any, prompts: Tokens, new: int = NEW, cached: bool = True) -> Tokens:
    """transformers' own greedy answers; with its cache Nemotron-H's are off now and then, its forward pass is right."""
    found = []
    for prompt in prompts:
        out = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            use_cache=cached,
        )
        found.append(out[0, len(prompt) :].tolist())
    return found


@torch.no_grad()
def confirmed(model: Any, prompts: Tokens, said: Tokens, whole: int = 1) -> Tokens:
    """generate's greedy answers: its own for the first `whole` prompts; of the others what is said, where that holds.

    An answer whose every token is the likeliest in one pass over all that stands before it is the one that generate
    finds, for a tenth of the time. Where it is not, generate has the word.
    """
    found = []
    for i, (prompt, answer) in enumerate(zip(prompts, said, strict=True)):
        logits = model(torch.tensor([prompt + answer[:-1]]), use_cache=False).logits[0, len(prompt) - 1 :]
        holds = i >= whole and logits.argmax(1).tolist() == answer
        found.append(answer if holds else generated(model, [prompt], len(answer))[0])
    return found


def engine(directory: Path, like: LLM | None = None, **settings: Any) -> LLM:
    """An engine with small blocks; `like` lends its weights."""
    usual = {"max_model_len": 104, "max_num_seqs": 8, "block_size": 8, "skip_tokenizer_init": True, "device": "cpu"}
    return LLM(str(directory), weights_of=like, **{**usual, **settings})


def ask(llm: LLM, prompts: Tokens, temperature: float = 0.0, new: int = NEW, **params: Any) -> Tokens:
    """The answers' tokens; afterwards nothing is left in use."""
    asked = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=new, ignore_eos=True, detokenize=False, **params)
        for i in range(len(prompts))
    ]
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], asked, use_tqdm=False)
    scheduler = llm.engine.scheduler
    assert scheduler.pool.num_free == scheduler.pool.num_blocks
    scheduler.check()
    assert not [output.error for output in outputs if output.error]
    return [list(answer.token_ids) for output in outputs for answer in output.outputs]


def know(llm: LLM, prompts: Tokens, *answers: Tokens, branching: bool, seed: int = 0) -> None:
    """Give an engine a drafter that is right three times in four, in chains or random trees."""
    texts = [p + answer for told in answers for p, answer in zip(prompts, told, strict=True)]
    llm.engine.runner.drafter = RandomTrees(12, dict(enumerate(texts)), seed, VOCAB, branching)


def ask_served(family: Any, prompts: Tokens, settings: dict[str, Any], drafts: bool) -> LLM:
    """An engine with these settings says what the family's plain one does: greedy and cold, then sampled and warm."""
    llm = engine(family.directory, family.plain, **settings, speculative_config=WIDE if drafts else None)
    if drafts:
        know(llm, prompts, family.greedy, family.sampled, branching="max_num_seqs" not in settings)
    assert ask(llm, prompts) == family.greedy
    assert ask(llm, prompts, 0.8) == family.sampled
    assert (llm.engine.stats.preemptions > 0) == ("num_gpu_blocks_override" in settings)
    return llm
