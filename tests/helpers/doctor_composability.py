"""Pairs of commands that differ in what stands beside speculation."""

from __future__ import annotations

from doctor_cases import HEAD, NGRAM, NGRAM_NOTES, SMALL_LM, SUFFIX, SUFFIX_NOTES, Case, Pair, bad, good, spec
from doctor_shared import DFLASH, TABLE, VLLM

PADDED = "disable_padded_drafter_batch"
PEAGLE = {**HEAD, "parallel_drafting": True}
COMPOSABILITY = [
    Pair("old-runner", bad(PEAGLE, "old-runner"), good(HEAD)),
    Pair(
        "new-runner-forced",
        bad(SUFFIX, "new-runner-forced", *SUFFIX_NOTES, before="VLLM_USE_V2_MODEL_RUNNER=1"),
        good(HEAD, before="VLLM_USE_V2_MODEL_RUNNER=1"),
    ),
    Pair(
        "old-runner-forced",
        bad(spec("dspark", 7, model="org/d"), "old-runner-forced", "old-runner", before="VLLM_USE_V2_MODEL_RUNNER=0"),
        good(spec("dspark", 7, model="org/d")),
    ),
    Pair(
        "adaptive-old-runner",
        bad({**PEAGLE, "enable_adaptive_verification": True}, "adaptive-old-runner", "old-runner"),
        good({**HEAD, "enable_adaptive_verification": True}),
    ),
    Pair(
        "adaptive-excludes",
        bad({**HEAD, "enable_adaptive_verification": True}, "adaptive-excludes", flags=("-pp 2",)),
        good({**HEAD, "enable_adaptive_verification": True}, flags=("-tp 2",)),
    ),
    Pair(
        "block-ignored",
        bad({**PEAGLE, "rejection_sample_method": "block"}, "block-ignored", "old-runner"),
        good({**HEAD, "rejection_sample_method": "block"}),
    ),
    Pair(
        "async-refused",
        bad(NGRAM, "async-refused", "ngram-filler-counted", flags=("--async-scheduling",)),
        good(spec("ngram_gpu"), "ngram-filler-counted", flags=("--async-scheduling",)),
    ),
    Pair("async-off", bad({**HEAD, PADDED: True}, "async-off"), good(HEAD)),
    Pair(
        "async-switched-off",
        bad(HEAD, "async-switched-off", flags=("--no-async-scheduling",)),
        good(NGRAM, *NGRAM_NOTES, flags=("--no-async-scheduling",)),
    ),
    Pair("enforce-eager", bad(HEAD, "enforce-eager", flags=("--enforce-eager",)), good(HEAD)),
    Pair(
        "padded-draft-model",
        bad({**SMALL_LM, PADDED: True}, "padded-draft-model", "async-off", "old-runner", version="0.28"),
        good({**SMALL_LM, PADDED: True}, "async-off"),
    ),
    Pair(
        "lora-token-budget",
        bad(HEAD, "lora-token-budget", flags=("--enable-lora --max-num-seqs 32 --max-num-batched-tokens 100",)),
        good(HEAD, flags=("--enable-lora --max-num-seqs 32 --max-num-batched-tokens 128",)),
    ),
    Pair(
        "draft-slots-over-budget",
        bad(
            DFLASH, "draft-slots-over-budget", flags=("--max-num-seqs 32 --max-num-batched-tokens 480",), version="0.27"
        ),
        good(DFLASH, flags=("--max-num-seqs 32 --max-num-batched-tokens 480",), version="0.28"),
    ),
    Pair(
        "draft-slots-over-step",
        bad(DFLASH, "draft-slots-over-step", flags=("--max-num-batched-tokens 15",)),
        good(DFLASH, flags=("--max-num-batched-tokens 16",)),
    ),
    Pair(
        "arctic-plugin",
        bad({**spec("arctic", model="org/head"), "enable_suffix_decoding": True}, "arctic-plugin"),
        good(HEAD),
    ),
    Pair(
        "draft-slots-shrink-budget",
        bad(
            DFLASH,
            "draft-slots-shrink-budget",
            flags=("--max-num-seqs 32 --max-num-batched-tokens 8192",),
            version="0.27",
        ),
        good(DFLASH, flags=("--max-num-seqs 32 --max-num-batched-tokens 8192",)),
    ),
    Pair(
        "schedule-needs-free-k",
        bad({**SUFFIX, "num_speculative_tokens_per_batch_size": TABLE}, "schedule-needs-free-k", *SUFFIX_NOTES),
        good({**HEAD, "num_speculative_tokens_per_batch_size": TABLE}),
    ),
    Pair(
        "schedule-needs-free-k-ngram-gpu",
        bad(
            {**spec("ngram_gpu"), "num_speculative_tokens_per_batch_size": TABLE},
            "schedule-needs-free-k-ngram-gpu",
            "ngram-gpu-async",
            version="0.24",
        ),
        good({**spec("ngram_gpu"), "num_speculative_tokens_per_batch_size": TABLE}, "ngram-filler-counted"),
    ),
    Pair(
        "schedule-data-parallel",
        bad({**HEAD, "num_speculative_tokens_per_batch_size": TABLE}, "schedule-data-parallel", flags=("-dp 2",)),
        good({**HEAD, "num_speculative_tokens_per_batch_size": TABLE}),
    ),
    Pair("dual-batch-overlap", bad(HEAD, "dual-batch-overlap", flags=("--enable-dbo",)), Case(f"{VLLM} --enable-dbo")),
    Pair(
        "fast-prefill",
        bad(HEAD, "fast-prefill", flags=("--kv-sharing-fast-prefill",)),
        good(NGRAM, *NGRAM_NOTES, flags=("--kv-sharing-fast-prefill",)),
    ),
    Pair(
        "logits-processors",
        bad(PEAGLE, "logits-processors", "old-runner", flags=("--logits-processors a.b:C",)),
        good(HEAD, flags=("--logits-processors a.b:C",)),
    ),
    Pair(
        "pipeline-async-old-runner",
        bad(PEAGLE, "pipeline-async-old-runner", "old-runner", flags=("-pp 2 --async-scheduling",)),
        good(HEAD, flags=("-pp 2 --async-scheduling",)),
    ),
    Pair(
        "mtp-block-size",
        bad(spec("mtp", 2), "mtp-block-size", target="two-layers", flags=("--block-size 1",)),
        good(spec("mtp", 2), target="two-layers", flags=("--block-size 16",)),
    ),
    Pair(
        "prefix-cache-last-block",
        bad(HEAD, "prefix-cache-last-block", flags=("--enable-prefix-caching",)),
        good({**HEAD, "disable_eagle_block_drop": True}, flags=("--enable-prefix-caching",)),
    ),
    Pair(
        "disaggregated-both-sides",
        bad(HEAD, "disaggregated-both-sides", flags=("--kv-transfer-config '{}'",)),
        good(HEAD, version="0.27", flags=("--kv-transfer-config '{}'",)),
    ),
]
