"""The cases: methods, keys, checkpoints, targets and sizes, crossed; each is a question to vLLM and to Augury.

A text that begins with @ is a checkpoint of checkpoints.py. What a case is called says where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from vllm_oracle.checkpoints import DRAFTERS, TARGETS

METHODS = tuple(
    """
    ngram ngram_gpu suffix medusa mlp_speculator draft_model custom_class eagle eagle3 mtp dflash dspark
    extract_hidden_states
    """.split()
)
BY_MODEL = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "dflash", "dspark")
K = "num_speculative_tokens"
LAYERS = {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}


class Case(NamedTuple):
    """One configuration and what it is asked for."""

    name: str
    given: dict[str, Any]
    target: str = "@llama"
    tp: int | None = None
    max_model_len: int | None = None
    engine: dict[str, Any] | None = None  # more arguments of the engine: then the whole command is judged


def methods_alone() -> Iterator[Case]:
    """A method by name and nothing to draft with."""
    for method, tokens, target in product(METHODS, (None, 1, 3), ("llama", "deepseek")):
        given = {"method": method, **({K: tokens} if tokens else {})}
        if method == "extract_hidden_states":
            given["draft_model_config"] = LAYERS
        yield Case(f"alone/{method}/{tokens}/{target}", given, f"@{target}")


def drafters() -> Iterator[Case]:
    """Every checkpoint under every method's name, and under none."""
    for drafter, method in product(DRAFTERS, (None, *BY_MODEL)):
        given = {"model": f"@{drafter}", K: 2, **({"method": method} if method else {})}
        yield Case(f"drafter/{drafter}/{method}", given)


def lengths() -> Iterator[Case]:
    """K left out, below, at and above what a checkpoint was trained for."""
    drafted = (
        ("predicts-two", "eagle"),
        ("block-dflash", "dflash"),
        ("markov-dspark", "dspark"),
        ("medusa", "medusa"),
        ("spec-three", "eagle3"),
        ("spec-flash", "dflash"),
        ("head-eagle3", "eagle3"),
        ("small-llama", "draft_model"),
    )
    for (drafter, method), tokens in product(drafted, (None, 1, 4, 5, 8, 9, 20)):
        given = {"model": f"@{drafter}", "method": method, **({K: tokens} if tokens else {})}
        yield Case(f"length/{drafter}/{tokens}", given)
    for wrong in (0, -1, "3", 3.0, 3.5, "three", True, None, 64, 300):
        yield Case(f"length/ngram/{wrong!r}", {"method": "ngram", K: wrong})


def families() -> Iterator[Case]:
    """Targets with layers of their own, from one token to more than they were trained for."""
    for target, tokens in product(TARGETS, (1, 2, 3, 4)):
        yield Case(f"family/{target}/{tokens}", {"method": "mtp", K: tokens}, f"@{target}")
    for target in ("deepseek", "qwen3-next", "glm4-moe", "mimo", "ernie-moe"):
        yield Case(f"family/{target}/as-drafter", {"model": f"@{target}", K: 1}, f"@{target}")
        yield Case(f"family/{target}/named-drafter", {"method": "mtp", "model": f"@{target}", K: 1}, f"@{target}")
    for alias in ("deepseek_mtp", "qwen3_next_mtp", "mimo_mtp", "ernie_mtp", "glm4_moe_mtp", "llama_mtp"):
        yield Case(f"family/alias/{alias}", {"method": alias, K: 1}, "@deepseek")


def sizes() -> Iterator[Case]:
    """Tensor parallelism of the target and of the drafter."""
    drafted = (
        ("small-llama", "draft_model"),
        ("six-heads", "draft_model"),
        ("head-eagle3", "eagle3"),
        ("heads-eagle3", "eagle3"),
        ("block-dflash", "dflash"),
    )
    for (drafter, method), tp, own in product(drafted, (None, 2, 4), (None, 1, 2, 4)):
        given = {"model": f"@{drafter}", "method": method, K: 3}
        if own:
            given["draft_tensor_parallel_size"] = own
        yield Case(f"size/{drafter}/{tp}/{own}", given, tp=tp)
    for tp, own in product((None, 2), (2, 3)):
        given = {"method": "ngram", K: 3, "draft_tensor_parallel_size": own}
        yield Case(f"size/ngram/{tp}/{own}", given, tp=tp)
    for tp, own in product((None, 2), (None, 2)):
        given = {"method": "mtp", K: 1, **({"draft_tensor_parallel_size": own} if own else {})}
        yield Case(f"size/mtp/{tp}/{own}", given, "@deepseek", tp=tp)


def contexts() -> Iterator[Case]:
    """The drafter's context against its own limit and the target's."""
    drafted = (
        ("small-llama", "draft_model"),
        ("short", "draft_model"),
        ("short-eagle3", "eagle3"),
        ("head-eagle3", "eagle3"),
    )
    for (drafter, method), own, served in product(drafted, (256, 1024, 4096), (None, 512)):
        given = {"model": f"@{drafter}", "method": method, K: 3, "max_model_len": own}
        yield Case(f"context/{drafter}/{own}/{served}", given, max_model_len=served)


def words() -> Iterator[Case]:
    """What stands in the model's place."""
    # No hub ids: what the hub has cannot be seen from here, by either side.
    written = (
        "ngram",
        "[ngram]",
        "ngram_gpu",
        "suffix",
        "mtp",
        "package.module.Class",
        "./nowhere",
        "../eagle3-nowhere",
        "https://host/model",
    )
    for model, method in product(written, (None, "ngram", "suffix", "eagle3", "draft_model")):
        given = {"model": model, K: 2, **({"method": method} if method else {})}
        yield Case(f"word/{model}/{method}", given)
    for model, method in product(("nodots", "a/b.c", ""), ("custom_class", "ngram")):
        yield Case(f"word/{model}/{method}", {"model": model, K: 2, "method": method})
    yield Case(
        "word/package.module.Class/custom_class", {"model": "package.module.Class", K: 2, "method": "custom_class"}
    )


VALUES: dict[str, tuple[Any, ...]] = {
    "prompt_lookup_max": (4, 0, "4", 2.5),
    "prompt_lookup_min": (2, 9, -1),
    "parallel_drafting": (True, "yes", 3),
    "disable_padded_drafter_batch": (True,),
    "disable_eagle_block_drop": (True,),
    "use_local_argmax_reduction": (True,),
    "use_heterogeneous_vocab": (True,),
    "enable_adaptive_verification": (True,),
    "index_share_for_mtp_iteration": (True, False),
    "dspark_draft_topk": (4, 0, 500),
    "draft_sample_method": ("probabilistic", "gumbel", "typical"),
    "rejection_sample_method": ("block", "strict", "typical"),
    "attention_backend": ("FLASH_ATTN", "flashinfer", "auto", "FLASH_ATN", "TREE_ATTN"),
    "kv_cache_dtype": ("fp8", "auto", "fp7"),
    "moe_backend": ("triton", "trition"),
    "quantization": ("fp8", "awq_marlin", "fp88"),
    "enforce_eager": (True, "maybe"),
    "revision": ("main",),
    "max_model_len": (0,),
    "tensor_parallel_size": (2,),
    "speculative_token_tree": ("[(0,)]",),
    "disable_by_batch_size": (8,),
    "tree": ({"max_nodes": 8, "top_k": 2},),
    "suffix_decoding_max_tree_depth": (8, 0),
    "suffix_decoding_max_cached_requests": (0, -1),
    "suffix_decoding_max_spec_factor": (0.0, -0.5),
    "suffix_decoding_min_token_prob": (0.5, 1.5),
    "num_speculative_tokens_per_batch_size": ([[1, 8, 3], [9, 64, 1]], [[1, 8]], [], "x"),
    "draft_load_config": ({"load_format": "dummy"}, {"load_format": 3}),
    "unheard_of": (1,),
}
BASES: dict[str, tuple[dict[str, Any], str]] = {
    "ngram": ({"method": "ngram", K: 3}, "@llama"),
    "draft_model": ({"method": "draft_model", "model": "@small-llama", K: 3}, "@llama"),
    "eagle3": ({"method": "eagle3", "model": "@head-eagle3", K: 3}, "@llama"),
    "detected": ({"model": "@head-eagle3", K: 3}, "@llama"),
    "mtp": ({"method": "mtp", K: 1}, "@deepseek"),
    "suffix": ({"method": "suffix", K: 8}, "@llama"),
    "dspark": ({"method": "dspark", "model": "@markov-dspark", K: 8}, "@qwen3"),
}


def keys() -> Iterator[Case]:
    """Every key with good and bad values, under methods that read it and under others."""
    for name, values in VALUES.items():
        for value, (base, (given, target)) in product(values, BASES.items()):
            yield Case(f"key/{name}={value!r}/{base}", {**given, name: value}, target)


def rules() -> Iterator[Case]:
    """Synthetic acceptance, and pairs of keys that depend on each other."""
    rates, length = "synthetic_acceptance_rates", "synthetic_acceptance_length"
    for more in (
        {},
        {rates: [0.9, 0.5, 0.1]},
        {rates: [0.9, 0.5]},
        {rates: [0.1, 0.5, 0.9]},
        {rates: [1.5, 1, 0]},
        {length: 2},
        {length: 4},
        {length: 4.5},
        {length: 0.5},
        {length: 2, rates: [0.9, 0.5, 0.1]},
        {rates: []},
    ):
        for rule in ("synthetic", "standard"):
            given = {"method": "ngram", K: 3, "rejection_sample_method": rule, **more}
            yield Case(f"rule/{rule}/{sorted(more)}={list(more.values())}", given)
    pairs = (
        {"enable_adaptive_verification": True, "use_local_argmax_reduction": True},
        {"use_heterogeneous_vocab": True, "draft_sample_method": "probabilistic"},
        {"parallel_drafting": True, "disable_padded_drafter_batch": True},
        {"prompt_lookup_min": 5, "prompt_lookup_max": 3},
        {"prompt_lookup_min": 3},
        {"prompt_lookup_max": 2},
    )
    for more, (base, (given, target)) in product(pairs, BASES.items()):
        yield Case(f"rule/{'+'.join(more)}/{base}", {**given, **more}, target)
    yield Case(
        "rule/heterogeneous", {**BASES["draft_model"][0], "model": "@other-words", "use_heterogeneous_vocab": True}
    )


ENGINE: tuple[dict[str, Any], ...] = (
    {"max_num_seqs": 32, "max_num_batched_tokens": 480},
    {"max_num_seqs": 32, "max_num_batched_tokens": 8192},
    {"max_num_batched_tokens": 8, "max_num_seqs": 4, "max_model_len": 8},
    {"async_scheduling": True},
    {"async_scheduling": False},
    {"enforce_eager": True},
    {"enable_lora": True, "max_num_seqs": 64},
    {"enable_lora": True, "max_num_seqs": 256, "max_num_batched_tokens": 256},
    {"enable_prefix_caching": False},
    {"enable_dbo": True},
    {"kv_sharing_fast_prefill": True},
    {"pipeline_parallel_size": 2},
)


def commands() -> Iterator[Case]:
    """Whole commands: what the engine refuses beside the configuration of speculation."""
    for more, (base, (given, target)) in product(ENGINE, BASES.items()):
        yield Case(f"engine/{'+'.join(f'{k}={v}' for k, v in more.items())}/{base}", given, target, engine=more)


def all_cases() -> list[Case]:
    """Every case by name."""
    makers = (methods_alone, drafters, lengths, families, sizes, contexts, words, keys, rules, commands)
    return [case for maker in makers for case in maker()]
