"""The table of hybrid families, made by running a small random model of each: `family_table.py > docs/families.md`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import hybrid_drafters
import torch
from hybrid_cases import HYBRIDS, save_hybrid, save_with_mtp
from hybrid_runs import NGRAM, SUFFIX, SUFFIX_TREE, WIDE, Tokens, ask, engine, generated, know, random_prompts

from augury import LLM
from augury.model.mixers import MIXERS

PROMPTS = random_prompts()
NAMES = {
    "qwen3-next": "Qwen3-Next",
    "qwen3.5": "Qwen3.5",
    "qwen3.5-moe": "Qwen3.5, experts",
    "nemotron-h": "Nemotron-H",
    "falcon-h1": "Falcon-H1",
    "falcon-h1-gate": "Falcon-H1 without norm",
    "granite-4": "Granite 4",
    "bamba": "Bamba",
    "lfm2": "LFM2",
    "lfm2-moe": "LFM2, experts",
}
KINDS = {"GatedDelta": "gated delta rule", "Mamba2": "Mamba-2", "ShortConv": "short convolution"}
FITTED = (0, 3, 4)  # prompts whose answers the drafters with weights have seen: short ones
DRAFTS: dict[str, Any] = {
    "none": None,
    "`ngram`": NGRAM,
    "`suffix`": SUFFIX,
    "`suffix`, tree": SUFFIX_TREE,
    "3 of 4 right, chain": WIDE,
    "3 of 4 right, tree": WIDE,
}
WITH_MTP = ("qwen3-next", "qwen3.5", "qwen3.5-moe")
HEAD = """# Hybrid targets

Models that mix recurrent or convolution layers with attention run through transformers' own weights and layers
(`model_impl` `adapter`). Augury keeps their states, which drafts never enter.

Same seed, same text holds for them in every test we have: matrix products, mixtures and recurrences treat each row
alone. Whatever else transformers' layers do is not proved as our own code is ([verification](verify.md)). See also
[what a state is, and what it costs](#states), and [every other model](models.md).

## What was tested

Made by `python tests/helpers/family_table.py`: a small random model of each family (about four layers, float32, on a
CPU), 8 prompts of 3 to 70 tokens, 16 new ones, 8 requests at once, blocks of 8 tokens. Each prompt is asked twice:
greedy, then at temperature 0.8 with the prefix cache warm.

- *equal*: in all 16 answers, the greedy tokens are those of transformers' `generate`, and the sampled ones those of
  plain decoding with the same seeds. The number is how many drafts were accepted.
- *3 of 4 right* is a drafter of the tests that knows the answers and is wrong one time in four.
- The draft model and the DFlash head have seen three of the eight answers; the MTP layers are random, and few of their
  drafts are accepted.
"""
FOOT = """
## States

A recurrent state cannot be cut back by moving a length. So a slot stores the state after tokens that are certain. For
draft nodes, a pass keeps only their inputs, and the accepted ones are run again from these at the beginning of the next
pass. Each slot has two states and uses them alternately, so a pass that has failed can be run again. Trees work as
chains do: a node continues from its parent's state.

| | numbers of float32 in one state |
|---|---|
| gated delta rule, a layer | value heads x key size x value size, and (kernel - 1) x convolved channels |
| Mamba-2, a layer | heads x head size x state size, and (kernel - 1) x convolved channels |
| short convolution, a layer | (kernel - 1) x hidden size |

Qwen3-Next-80B-A3B, for example: 36 layers x (32 x 128 x 128 + 3 x 8,192) numbers, 79 MB a state, which is as much as
the keys and values of 1,600 tokens in float32. A slot has two, 158 MB, and 2.4 MB more for every draft node that a pass
may have (the inputs kept). Without `max_num_seqs` there are as many slots as take half of the cache's memory, 64 on a
CPU and 256 on a GPU at most: 6 for this model with the 2 GiB that a CPU's cache has by default.

**Prefix cache.** States are saved in passing and found by the same hashes as blocks:

- at the end of a prompt,
- where two prompts part,
- every so many blocks (as many as take a state's memory, 256 tokens at least),
- after the answer, at its last full block.

A hit goes as far as a saved state does. Saved states take a quarter of the cache's memory at most; the least recently
used go first. With drafts, what is found after an answer may be a block shorter than without.

**Cost.** On a CPU a block of a state is read from memory once a pass and written once, however many drafts there are. A
row costs four multiply-adds per number of the state under the delta rule and three under Mamba-2; a draft's last node
costs half of that, and an accepted node is computed again in the next pass. A pass of five rows takes 1.1 to 1.5 times
one of a single row (`python tests/helpers/hybrid_cost.py`), not counting matrices and attention, which cost the same as
in any model. The [LOG](LOG.md) has each family's figure on x86 and ARM.

**Limits.**

- A hybrid as a draft model is refused.
- On a GPU the recurrence runs as its torch reference, without CUDA graphs: the same text
  (`tests/engine/test_hybrid_gpu.py`, run on an H200), but not the speed of a dense target.
- Jamba's Mamba-1 has a decay for every number of its state, which the recurrence above does not have: it is refused by
  name, as are Zamba, RWKV, MiniMax, Kimi Linear and pure Mamba models.

## Mixtures of experts

Qwen3-MoE (`qwen3_moe`) and Mixtral (`mixtral`) run on our own code (`dense`), including layers without experts. Their
checkpoints may have three matrices an expert, as they were published, or a layer's experts in two tensors, as
transformers 5 holds them.

A row's bits do not depend on the other rows of the batch: on a CPU, where an expert's matrices are read once for all
rows that chose it, and with `exact` on a GPU. There, rows are sorted by expert without the host, so passes are captured
like those of any dense model. Between experts that are equally likely, the one with the lower number runs.

Refused by name: quantised checkpoints and `quantization`, `tensor_parallel_size` above 1, LoRA adapters,
`augury train`. Mixtures of other kinds (shared experts as in Qwen2-MoE and DeepSeek, biases or other activations as in
gpt-oss, those of hybrids) run on the adapter, without CUDA graphs.

## Other families

Causal language models of transformers that attend through its attention interface run on the adapter, with full,
sliding or chunked attention (Llama 4; the bits of a row of its experts may depend on the batch).

Families without that interface (Falcon, BLOOM, MPT, GPT-J, GPT-Neo, CodeGen, StableLM, XGLM, BioGPT) and those whose
attention is of another kind (Doge, DiffLlama) are **refused**: run through their own cache they could neither be
batched nor be speculated for, so Augury would add nothing to `generate`, and it never downgrades in silence.
"""


def judged(llm: LLM, greedy: Tokens, sampled: Tokens) -> str:
    """Ask twice, and say whether all was equal."""
    same = ask(llm, PROMPTS) == greedy and ask(llm, PROMPTS, 0.8) == sampled
    accepted = llm.engine.stats.spec.num_accepted_tokens
    if not same:
        return "**differs**"
    return f"equal, {accepted}" if llm.engine.drafter is not None else "equal"


def row(name: str, directory: Path) -> list[str]:
    """One family."""
    model = save_hybrid(name, directory)
    greedy = generated(model, PROMPTS)
    plain = engine(directory)
    sampled = ask(plain, PROMPTS, 0.8)
    kinds = {KINDS[MIXERS[type(m).__name__].__name__] for m in model.modules() if type(m).__name__ in MIXERS}
    cells = [NAMES[name], f"`{model.config.model_type}`", *kinds]
    for label, spec in DRAFTS.items():
        llm = engine(directory, plain, speculative_config=spec)
        if spec is WIDE:
            know(llm, PROMPTS, greedy, sampled, branching=label.endswith("tree"))
        cells.append(judged(llm, greedy, sampled))
    for spec in with_weights(model, directory, greedy):
        cells.append(judged(engine(directory, plain, speculative_config=spec), greedy, sampled))
    if name not in WITH_MTP:
        return [*cells, ""]
    other = directory.with_name(f"{directory.name}-mtp")
    made = save_with_mtp(name, other, 2)
    greedy, plain = generated(made.target, PROMPTS), engine(other)
    llm = engine(other, plain, speculative_config={"method": "mtp", "num_speculative_tokens": 2})
    return [*cells, judged(llm, greedy, ask(plain, PROMPTS, 0.8))]


def with_weights(model: Any, directory: Path, greedy: Tokens) -> list[dict[str, Any]]:
    """A draft model and a DFlash head that have seen three of the answers."""
    texts, begins = [PROMPTS[i] + greedy[i] for i in FITTED], [len(PROMPTS[i]) for i in FITTED]
    small = hybrid_drafters.draft_model(texts, directory.with_name(f"{directory.name}-draft"))
    flash = hybrid_drafters.dflash(model, texts, begins, directory.with_name(f"{directory.name}-dflash"))
    both = (("draft_model", small), ("dflash", flash))
    return [{"method": method, "model": str(files), "num_speculative_tokens": 4} for method, files in both]


def main() -> None:
    """Print the page."""
    torch.set_num_threads(1)
    titles = [
        "family",
        "`model_type`",
        "beside attention",
        *(f"drafts: {label}" for label in DRAFTS),
        "`draft_model`",
        "`dflash`",
        "`mtp`, 2 layers",
    ]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    with tempfile.TemporaryDirectory() as room:
        for name in HYBRIDS:
            print(name, file=sys.stderr)
            lines.append(f"| {' | '.join(row(name, Path(room) / name))} |")
    print(HEAD, *lines, FOOT.rstrip(), sep="\n")


if __name__ == "__main__":
    main()
