"""Pairs of commands of which a release lets one through and stops the other."""

from __future__ import annotations

import json

from doctor_cases import HEAD, NGRAM, NGRAM_NOTES, OLD, SMALL_LM, Case, Pair, bad, good, serve, spec
from doctor_shared import DFLASH, VLLM

V32 = 'vllm serve deepseek-ai/DeepSeek-V3.2 --speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\''
WINDOWS = ("dflash-windows", *OLD)
GATES = [
    Pair(
        "key-gone",
        bad({**HEAD, "disable_by_batch_size": 16}, "key-gone"),
        good({**HEAD, "disable_by_batch_size": 16}, "zero-bubble", *OLD, version="0.16"),
    ),
    Pair(
        "key-too-new",
        bad({**HEAD, "kv_cache_dtype": "fp8"}, "key-too-new", *OLD, version="0.20"),
        good({**HEAD, "kv_cache_dtype": "fp8"}, version="0.26"),
    ),
    Pair(
        "key-ignored",
        bad({**HEAD, "parallel_drafting": True}, "key-ignored", "async-not-default", *OLD, version="0.13"),
        good({**HEAD, "parallel_drafting": True}, "zero-bubble", *OLD, version="0.16"),
    ),
    Pair(
        "key-augury-only",
        bad({**NGRAM, "prompt_lookup_match": "latest"}, "key-augury-only", *NGRAM_NOTES),
        Case(serve({**NGRAM, "prompt_lookup_match": "latest"}).replace("vllm serve", "augury serve")),
    ),
    Pair(
        "value-gone",
        bad({**HEAD, "rejection_sample_method": "strict"}, "value-gone"),
        good({**HEAD, "rejection_sample_method": "strict"}, *OLD, version="0.20"),
    ),
    Pair(
        "value-too-new",
        bad({**HEAD, "rejection_sample_method": "block"}, "value-too-new", version="0.24"),
        good({**HEAD, "rejection_sample_method": "block"}, version="0.25"),
    ),
    Pair(
        "value-augury-only",
        bad({**HEAD, "rejection_sample_method": "coupled"}, "value-augury-only"),
        Case(serve({**HEAD, "rejection_sample_method": "coupled"}).replace("vllm serve", "augury serve")),
    ),
    Pair(
        "method-too-new",
        bad(DFLASH, "method-too-new", *WINDOWS, version="0.18"),
        good(DFLASH, *WINDOWS, version="0.20"),
    ),
    Pair("method-gap", bad(SMALL_LM, "method-gap", *OLD, version="0.12"), good(SMALL_LM, *OLD, version="0.15")),
    Pair(
        "method-gone",
        bad(spec("mlp_speculator", model="org/mlp"), "method-gone", "async-off"),
        good(spec("mlp_speculator", model="org/mlp"), *OLD, version="0.9"),
    ),
    Pair(
        "flag-gone",
        Case(f"{VLLM} --speculative-model ngram --num-speculative-tokens 3", ("flag-gone", "flag-gone", *OLD), "0.9"),
        Case(f"{VLLM} --speculative-model ngram --num-speculative-tokens 3", OLD, "0.8.2"),
    ),
    Pair(
        "flag-too-new",
        Case(f"{VLLM} -sc '{json.dumps(NGRAM)}'", ("flag-too-new", "async-off", *OLD), "0.18"),
        Case(f"{VLLM} -sc '{json.dumps(NGRAM)}'", ("async-off", *OLD), "0.19"),
    ),
    Pair(
        "eagle3-preamble",
        bad(HEAD, "eagle3-preamble", "eagle-chunked-prefill", *OLD, version="0.11"),
        good(HEAD, *OLD, version="0.11.1"),
    ),
    Pair(
        "eagle-chunked-prefill",
        bad(spec("eagle", model="org/eagle-head"), "eagle-chunked-prefill", *OLD, version="0.10"),
        good(spec("eagle", model="org/eagle-head"), *OLD, version="0.11.1"),
    ),
    Pair(
        "eagle-lora-graphs",
        bad(
            HEAD,
            "eagle-lora-graphs",
            "lora-too-early",
            "eagle3-preamble",
            "eagle-chunked-prefill",
            *OLD,
            version="0.11",
            flags=("--enable-lora",),
        ),
        good(HEAD, *OLD, version="0.11.1", flags=("--enable-lora",)),
    ),
    Pair(
        "async-too-early",
        bad(HEAD, "async-too-early", *OLD, version="0.11.1", flags=("--async-scheduling",)),
        good(HEAD, *OLD, version="0.12", flags=("--async-scheduling",)),
    ),
    Pair(
        "async-not-default",
        bad(HEAD, "async-not-default", *OLD, version="0.13"),
        good(HEAD, *OLD, version="0.13", flags=("--async-scheduling",)),
    ),
    Pair("zero-bubble", bad(HEAD, "zero-bubble", *OLD, version="0.15"), good(HEAD, *OLD, version="0.19")),
    Pair(
        "structured-too-early",
        bad(
            HEAD,
            "structured-too-early",
            "zero-bubble",
            *OLD,
            version="0.15",
            flags=("--guided-decoding-backend xgrammar",),
        ),
        good(HEAD, "zero-bubble", *OLD, version="0.16", flags=("--guided-decoding-backend xgrammar",)),
    ),
    Pair(
        "pipeline-too-early",
        bad(HEAD, "pipeline-too-early", "zero-bubble", *OLD, version="0.16", flags=("-pp 2",)),
        good(HEAD, "pipeline-broadcast", "zero-bubble", *OLD, version="0.17", flags=("-pp 2",)),
    ),
    Pair(
        "disaggregated-too-early",
        bad(HEAD, "disaggregated-too-early", "zero-bubble", *OLD, version="0.16", flags=("--kv-transfer-config '{}'",)),
        good(HEAD, "zero-bubble", *OLD, version="0.18", flags=("--kv-transfer-config '{}'",)),
    ),
    Pair(
        "disaggregated-fix",
        bad(HEAD, "disaggregated-fix", "zero-bubble", *OLD, version="0.17.1", flags=("--kv-transfer-config '{}'",)),
        good(HEAD, "zero-bubble", *OLD, version="0.18", flags=("--kv-transfer-config '{}'",)),
    ),
    Pair(
        "dflash-attention-backend",
        bad(DFLASH, "dflash-attention-backend", *WINDOWS, version="0.22", flags=("--attention-backend TRITON_ATTN",)),
        good(DFLASH, "dflash-windows", version="0.24", flags=("--attention-backend TRITON_ATTN",)),
    ),
    Pair(
        "eagle3-target-list",
        bad(HEAD, "eagle3-target-list", *OLD, version="0.20", target="granite"),
        good(HEAD, *OLD, version="0.22", target="granite"),
    ),
    Pair("deepseek-v32-eager", Case(V32, ("deepseek-v32-eager", *OLD), "0.20"), Case(V32)),
    Pair(
        "probabilistic-drafts-biased",
        bad({**HEAD, "draft_sample_method": "probabilistic"}, "probabilistic-drafts-biased", version="0.28"),
        good({**HEAD, "draft_sample_method": "probabilistic"}, version="0.29"),
    ),
    Pair("invalid-token-crash", bad(HEAD, *OLD, version="0.23"), good(HEAD, version="0.24")),
    Pair(
        "first-engine-switch",
        bad(HEAD, "first-engine-switch", before="VLLM_USE_V1=0"),
        good(HEAD, before="VLLM_USE_V1=1"),
    ),
]
