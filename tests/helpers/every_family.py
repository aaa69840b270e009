"""Every causal language model that transformers knows, as a small random one: does it run here, and is its text equal?

`every_family.py > docs/models.md` makes the page, in half an hour; `every_family.py NAME ...` judges some families.
"""

from __future__ import annotations

import multiprocessing
import queue
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from dense_cases import save_random
from hybrid_runs import NGRAM, SUFFIX_TREE, VOCAB, WIDE, ask, engine, generated, know, random_prompts
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from augury.model.errors import ModelError

SECONDS = 600  # for one family
PROMPTS = random_prompts()
THETAS = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "default", "rope_theta": 1e5},
}
# What makes a model small, by every name that configurations have for it; windows and chunks are shorter than prompts.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "shared_intermediate_size"), 96),
    **dict.fromkeys(("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size"), 32),
    **dict.fromkeys(("shared_expert_intermediate_size", "intermediate_size_mlp", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv"), 2),
    **dict.fromkeys(("head_dim", "swa_head_dim", "qk_nope_head_dim", "v_head_dim", "index_head_dim"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "experts_per_token"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_sequence_length"), 512),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "sliding_window_size", "local_attention"), 6),
    "vocab_size": VOCAB,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": 3,
    "pad_token_id": 0,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 16,
    "global_head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
LATENT = (
    "axk1",
    "axk2",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "longcat_flash",
    "minicpm3",
    "youtu",
)
MIXED = ["sliding_attention", "full_attention"] * 2
# What these need besides, or cannot have.
OWN: dict[str, dict[str, Any]] = {
    **{name: {"head_dim": 8, "num_key_value_heads": 4} for name in LATENT},
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {"layer_types": MIXED, "rope_parameters": THETAS},
    "cwm": {"bos_token_id": 1},
    "dots1": {"n_shared_experts": 1},
    "gemma3n_text": {
        "layer_types": MIXED,
        "num_kv_shared_layers": 2,
        "intermediate_size": [96] * 4,
        "activation_sparsity_pattern": [0.95, 0.0] * 2,
    },
    "gemma4_text": {"layer_types": MIXED, "per_layer_config": {"1": {"head_dim": 32}, "3": {"head_dim": 32}}},
    "gemma4_unified_text": {"layer_types": MIXED, "per_layer_config": {"1": {"head_dim": 32}, "3": {"head_dim": 32}}},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "conv"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "modernbert-decoder": {"bos_token_id": 1},
    "zaya": {"num_experts_per_tok": 1},
}
# Encoders, parts of models that read images or sound, and decoders that answer an encoder: no targets of anybody's.
OTHERS = set(
    """
    bart bert bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small camembert data2vec-text electra
    ernie git marian mbart megatron-bert moshi musicgen musicgen_melody mvp pegasus phi4_multimodal plbart
    prophetnet reformer rembert roberta roberta-prelayernorm roc_bert roformer trocr whisper xlm xlm-roberta
    xlm-roberta-xl xlnet xmod blt
    """.split()
)


HEAD = """# Which models run

Every causal language model of transformers {version}, and whether it runs in Augury:

- *dense* is our own code, whose passes a GPU captures; *adapter* runs transformers' layers on our attention. [Hybrids
  and mixtures](families.md) have a page of their own.
- *equal*: greedy tokens are those of transformers' `generate`; with n-gram drafts, suffix trees and trees that are
  right three times in four, greedy and at temperature 0.8, they are those of plain decoding with the same seeds.

Each was tried as a small random model (four layers, float32, on a CPU; windows and chunks shorter than the prompts),
with 8 prompts of 3 to 70 tokens, 16 new ones each, 8 requests at once. Made by `python tests/helpers/every_family.py`.
"""


class Verdict(NamedTuple):
    """What was found of a family."""

    model_type: str
    runs_on: str  # dense, adapter, or nothing where it is refused
    word: str


def small_config(model_type: str) -> Any:
    """A configuration of that family with small sizes."""
    usual = AutoConfig.for_model(model_type)
    names = {*usual.to_dict(), *usual.attribute_map}
    return AutoConfig.for_model(
        model_type, **{name: size for name, size in SMALL.items() if name in names} | OWN.get(model_type, {})
    )


def families() -> list[str]:
    """Those that write text by themselves; a family that reads images too is here by its part for text."""
    known = [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in OTHERS]
    return [
        name
        for name in known
        if not hasattr(CONFIG_MAPPING[name], "sub_configs") or not CONFIG_MAPPING[name].sub_configs
    ]


def judged(model_type: str, directory: Path) -> Verdict:
    """Ask a random model of a family with and without drafts."""
    try:
        model = save_random(small_config(model_type), directory)
        greedy = generated(model, PROMPTS)
    except Exception as error:  # transformers' own trouble with small sizes: nothing to compare with
        return Verdict(model_type, "", f"not built: {type(error).__name__}: {str(error)[:150]}")
    try:
        plain = engine(directory)
    except ModelError as error:
        return Verdict(model_type, "", f"refused: {error}")
    runs_on = "dense" if type(plain.engine.runner.target).__name__ == "Dense" else "adapter"
    return Verdict(model_type, runs_on, "; ".join(differences(directory, plain, model, greedy)) or "equal")


def differences(directory: Path, plain: Any, model: Any, greedy: list[list[int]]) -> Iterator[str]:
    """Where text is not transformers', or not that of plain decoding."""
    found = ask(plain, PROMPTS)
    if found != greedy and found != generated(model, PROMPTS, cached=False):
        wrong = sum(a != b for a, b in zip(found, greedy, strict=True))
        yield f"greedy text differs in {wrong} of {len(PROMPTS)}"
    sampled = ask(plain, PROMPTS, 0.8)
    for name, spec in {"ngram": NGRAM, "suffix tree": SUFFIX_TREE, "3 of 4 right, tree": WIDE}.items():
        llm = engine(directory, plain, speculative_config=spec)
        if spec is WIDE:
            know(llm, PROMPTS, found, sampled, branching=True)
        if ask(llm, PROMPTS) != found or ask(llm, PROMPTS, 0.8) != sampled:
            yield f"{name} differs from plain"


def _tell(model_type: str, told: Any) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as room:
        try:
            told.put(judged(model_type, Path(room) / "model"))
        except Exception:
            told.put(Verdict(model_type, "", f"FAILED: {traceback.format_exc(limit=-4)}"))


def in_a_process(model_type: str) -> Verdict:
    """A family's verdict, whatever it does to its process."""
    forks = multiprocessing.get_context("fork")
    told = forks.Queue()
    child = forks.Process(target=_tell, args=(model_type, told))
    child.start()
    try:
        return told.get(timeout=SECONDS)
    except queue.Empty:
        return Verdict(model_type, "", "FAILED: no answer in time")
    finally:
        child.kill()
        child.join()


def page(verdicts: list[Verdict]) -> Iterator[str]:
    """The page for people, line by line."""
    yield HEAD.format(version=transformers.__version__)
    yield "| `model_type` | runs on | text |"
    yield "|---|---|---|"
    yield from (f"| `{found.model_type}` | {found.runs_on} | {found.word} |" for found in verdicts if found.runs_on)
    yield "\n## Refused, with these words\n"
    for found in verdicts:
        if found.word.startswith("refused: "):
            reason = found.word.split("cannot run here: ")[-1].split("; supported families")[0].rstrip(".")
            yield f"- `{found.model_type}`: {reason}"
    untried = [f"`{found.model_type}`" for found in verdicts if found.word.startswith("not built: ")]
    yield f"\nNot tried, because transformers itself does not run one that small: {', '.join(untried)}."


def main() -> None:
    """Print what was found."""
    verdicts = []
    for model_type in sys.argv[1:] or families():
        verdicts.append(in_a_process(model_type))
        print(*verdicts[-1], sep=" | ", file=sys.stderr, flush=True)
    if not sys.argv[1:]:
        print(*page(verdicts), sep="\n")


if __name__ == "__main__":
    main()
