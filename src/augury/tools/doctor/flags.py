"""The flags of vLLM that the doctor has to know by name."""

from __future__ import annotations

from difflib import get_close_matches

SHORT = {
    "-sc": "speculative-config",
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-q": "quantization",
    "-O": "compilation-config",
    "-cc": "compilation-config",
}

# Flags that configure speculation, and the key each sets; the first sets them all.
SPECULATIVE = {
    "speculative-config": "",
    "spec-method": "method",
    "spec-model": "model",
    "spec-tokens": "num_speculative_tokens",
}
FLAG_SINCE = {
    "-sc": "0.19",
    "--spec-method": "0.22",
    "--spec-model": "0.22",
    "--spec-tokens": "0.22",
    "--per-request-spec-decode-metrics": "0.28",
}

# The separate flags that preceded the one object; vLLM 0.8.3 removed them all.
OLD_FLAGS = {
    "speculative-model": "model",
    "num-speculative-tokens": "num_speculative_tokens",
    "speculative-draft-tensor-parallel-size": "draft_tensor_parallel_size",
    "speculative-max-model-len": "max_model_len",
    "speculative-disable-by-batch-size": "disable_by_batch_size",
    "speculative-model-quantization": "quantization",
    "speculative-disable-mqa-scorer": "disable_mqa_scorer",
    "ngram-prompt-lookup-max": "prompt_lookup_max",
    "ngram-prompt-lookup-min": "prompt_lookup_min",
    "spec-decoding-acceptance-method": "acceptance_method",
    "typical-acceptance-sampler-posterior-threshold": "typical_acceptance_sampler_posterior_threshold",
    "typical-acceptance-sampler-posterior-alpha": "typical_acceptance_sampler_posterior_alpha",
    "disable-logprobs-during-spec-decoding": "disable_logprobs",
}

SWITCHES = set(
    """
    enforce-eager enable-lora enable-prefix-caching enable-chunked-prefill trust-remote-code async-scheduling
    enable-expert-parallel disable-log-requests disable-log-stats enable-log-requests enable-auto-tool-choice
    enable-dbo kv-sharing-fast-prefill enable-reasoning save-result save-detailed ignore-eos headless
    enable-sleep-mode disable-cascade-attn enable-eplb enable-per-request-metrics enable-force-include-usage
    disable-frontend-multiprocessing profile speculative-disable-mqa-scorer use-v2-block-manager
    enable-server-load-tracking disable-uvicorn-access-log
    """.split()
)
SWITCHES |= {f"no-{name}" for name in SWITCHES}
TAKES_SEVERAL = {"cudagraph-capture-sizes", "cuda-graph-sizes", "lora-modules", "served-model-name", "middleware"}
OTHERS = {"per-request-spec-decode-metrics"}
BENCHMARKS = ("spec-bench", "speed-bench")  # datasets of `vllm bench`, not settings of speculation


def near(name: str) -> str | None:
    """The flag that an unknown one was probably meant to be, if it has to do with speculation."""
    name = name.partition(".")[0]
    if name in SPECULATIVE or name in OTHERS or name in OLD_FLAGS or name.startswith(BENCHMARKS):
        return None
    if name.startswith("speculative") and "speculative-config".startswith(name):
        return "speculative-config"
    close = get_close_matches(name, [*SPECULATIVE, *OTHERS], n=1, cutoff=0.75)
    if close:
        return close[0]
    guesses = {"tokens": "spec-tokens", "method": "spec-method", "model": "spec-model", "config": "speculative-config"}
    if name.startswith(("spec-", "speculative", "num-spec")):
        return next((flag for part, flag in guesses.items() if part in name), "speculative-config")
    return None
