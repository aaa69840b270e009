"""Pairs of commands that differ in what is served, or in what a release does with it."""

from __future__ import annotations

import json

from doctor_cases import HEAD, NGRAM, OLD, Case, Pair, bad, good, spec
from doctor_shared import MTP, TABLE, VLLM

HYBRID_DRAFT = json.dumps(
    {"method": "draft_model", "model": "tiiuae/Falcon-H1-0.5B-Instruct", "num_speculative_tokens": 3}
)
TRAFFIC = [
    Pair(
        "high-batch-no-schedule",
        bad(HEAD, "high-batch-no-schedule", flags=("--max-num-seqs 256",)),
        good({**HEAD, "num_speculative_tokens_per_batch_size": TABLE}, flags=("--max-num-seqs 256",)),
    ),
    Pair(
        "not-generating",
        bad(HEAD, "not-generating", flags=("--runner pooling",)),
        good(HEAD, flags=("--runner generate",)),
    ),
    Pair(
        "one-token-answers",
        Case(f"vllm bench latency --model m -sc '{json.dumps(HEAD)}' --output-len 1", ("one-token-answers",)),
        Case(f"vllm bench latency --model m -sc '{json.dumps(HEAD)}' --output-len 128"),
    ),
    Pair("target-small", bad(MTP, "target-small", "no-mtp-layers", target="tiny"), good(MTP, target="deepseek")),
    Pair("target-has-mtp", bad(HEAD, "target-has-mtp", target="deepseek"), good(HEAD, target="llama")),
    Pair(
        "sampling-default-refused",
        bad(HEAD, "sampling-default-refused", target="llama-min-p"),
        good(HEAD, target="llama-min-p", flags=("--generation-config vllm",)),
    ),
    Pair(
        "sampling-default-ignored",
        bad(
            HEAD,
            "sampling-default-ignored",
            "async-not-default",
            *OLD,
            version="0.13",
            flags=("""--override-generation-config '{"min_p": 0.1}'""",),
        ),
        good(
            HEAD,
            "async-not-default",
            *OLD,
            version="0.13",
            flags=("""--override-generation-config '{"top_p": 0.9}'""",),
        ),
    ),
    Pair("logprobs-not-stable", bad(HEAD, "logprobs-not-stable", flags=("--max-logprobs 50",)), good(HEAD)),
    Pair(
        "bench-temperature",
        Case("vllm bench serve --model m --dataset-name random", ("bench-temperature",)),
        Case("vllm bench serve --model m --dataset-name random --temperature 0"),
    ),
    Pair(
        "offline-hub-drafter",
        bad(HEAD, "offline-hub-drafter", before="HF_HUB_OFFLINE=1"),
        good(spec("eagle3", model="/models/EAGLE3-head"), before="HF_HUB_OFFLINE=1"),
    ),
    Pair(
        "unused-per-request-metrics",
        Case(f"{VLLM} --per-request-spec-decode-metrics summary", ("unused-per-request-metrics",)),
        good(HEAD, flags=("--per-request-spec-decode-metrics summary",)),
    ),
    Pair(
        "hidden-states-need-connector",
        bad(
            spec(
                "extract_hidden_states", 1, draft_model_config={"hf_config": {"eagle_aux_hidden_state_layer_ids": [2]}}
            ),
            "hidden-states-need-connector",
        ),
        good(
            spec(
                "extract_hidden_states", 1, draft_model_config={"hf_config": {"eagle_aux_hidden_state_layer_ids": [2]}}
            ),
            flags=("--kv-transfer-config '{}'",),
        ),
    ),
    Pair(
        "hybrid-not-here",
        Case("augury serve ai21labs/Jamba-1.5-Mini -sc " + repr(json.dumps(NGRAM)), ("hybrid-not-here",)),
        Case("augury serve LiquidAI/LFM2-1.2B -sc " + repr(json.dumps(NGRAM))),
    ),
    Pair(
        "hybrid-draft-not-here",
        Case(f"augury serve tiiuae/Falcon-H1-34B-Instruct -sc {HYBRID_DRAFT!r}", ("hybrid-draft-not-here",)),
        Case("augury serve tiiuae/Falcon-H1-34B-Instruct -sc " + repr(json.dumps(NGRAM))),
    ),
    Pair(
        "ascend-k-limit",
        bad(spec("mtp", 16), "ascend-k-limit", "mtp-far-beyond-depth", flags=("--quantization ascend",)),
        good(spec("mtp", 15), "mtp-far-beyond-depth", flags=("--quantization ascend",)),
    ),
    Pair(
        "ascend-draft-tp",
        bad({**HEAD, "draft_tensor_parallel_size": 4}, "ascend-draft-tp", flags=("-tp 4 -q ascend",)),
        good({**HEAD, "draft_tensor_parallel_size": 1}, flags=("-tp 4 -q ascend",)),
    ),
    Pair(
        "ascend-lossy-rule",
        bad(
            HEAD,
            "ascend-lossy-rule",
            flags=("""--additional-config '{"rejection_sampler_config": {"enable_entropy_verify": true}}'""",),
        ),
        good(HEAD, flags=("""--additional-config '{"rejection_sampler_config": {"posterior_alpha": 0.4}}'""",)),
    ),
    Pair(
        "ascend-block-short",
        bad(
            spec("mtp", 2),
            "ascend-lossy-rule",
            "ascend-block-short",
            flags=("""--additional-config '{"rejection_sampler_config": {"enable_block_verify": true}}'""",),
        ),
        good(
            spec("mtp", 3),
            "ascend-lossy-rule",
            flags=("""--additional-config '{"rejection_sampler_config": {"enable_block_verify": true}}'""",),
        ),
    ),
    Pair(
        "capture-sizes",
        bad(HEAD, "capture-sizes", flags=("--cudagraph-capture-sizes 1 2 4 8",)),
        good(HEAD, flags=("--cudagraph-capture-sizes 4 8 16 32",)),
    ),
]
