"""Pairs about bugs by release: a command that shows each linted entry of bugs.yaml, and a neighbour that does not."""

from __future__ import annotations

from doctor_cases import DEEPSEEK, HYBRID, LLAMA, NGRAM, OLD, STATES, Case, Pair, spec
from doctor_fits import BUBBLE, GEMMA4, TRANSFER, at

QWEN36 = "Qwen/Qwen3.6-27B"
NO_CACHE = "--no-enable-prefix-caching"
MTP, EAGLE, DFLASH = spec("mtp", 1), spec("eagle3", model="org/eagle3-head"), spec("dflash", 7, model="org/block")
TOOLS = "--enable-auto-tool-choice --tool-call-parser"
TABLE = {"num_speculative_tokens_per_batch_size": [[1, 16, 3], [17, 256, 0]]}
CACHED = ("hybrid-prefix-cache-text", "hybrid-prefix-cache-hits")  # of a drafter whose index is bounded
BLOCK = ("hybrid-index-bound", *CACHED, "multimodal-draft-blind")  # of DFlash there
PIECEWISE = """-O '{"cudagraph_mode": "PIECEWISE"}'"""
COUPLED = spec("custom_class", model="augury.plugins.vllm.lookup.Ngram", rejection_sample_method="coupled")
ASSISTED = spec("mtp", 3, model=f"{GEMMA4}-assistant")
DSPARK = spec("dspark", 4, model="org/dspark")
FULL = """-O '{"cudagraph_mode": "FULL"}'"""


def asks(version: str, *ids: str, before: str = "") -> Case:
    """A program whose requests have a budget for thinking."""
    text = f"""{before}
from vllm import LLM, SamplingParams
llm = LLM("m", speculative_config={{"method": "eagle3", "model": "a/eagle3", "num_speculative_tokens": 3}})
llm.generate("Hello", SamplingParams(thinking_token_budget=512))
"""
    return Case(text, ids, version, "run.py")


def ranks(target: str, *ids: str) -> Case:
    """Two ranks on the old runner."""
    text = "VLLM_USE_V2_MODEL_RUNNER=0 " + at(target, EAGLE, flags="-tp 2").text
    return Case(text, (*ids, "old-runner"), "0.26")


BUGS = [
    Pair("hybrid-prefix-cache-text", at(QWEN36, MTP, *HYBRID), at(QWEN36, MTP, *STATES, flags=NO_CACHE)),
    Pair(
        "hybrid-prefix-cache-hits", at(QWEN36, MTP, *HYBRID, version="0.26"), at(QWEN36, MTP, *STATES, version="0.25")
    ),
    Pair(
        "hybrid-lookup-text",
        at(QWEN36, NGRAM, "hybrid-lookup-text", "async-off", "old-runner", version="0.28"),
        at(QWEN36, NGRAM, "async-off", "old-runner", version="0.28", flags="--mamba-cache-mode align"),
    ),
    Pair(
        "hybrid-full-graphs", at(QWEN36, DFLASH, "hybrid-full-graphs", *BLOCK, flags=FULL), at(QWEN36, DFLASH, *BLOCK)
    ),
    Pair("hybrid-index-bound", at(QWEN36, MTP, *STATES, flags=NO_CACHE), at(DEEPSEEK, MTP)),
    Pair("hybrid-acceptance-dies", at(QWEN36, MTP, *STATES, flags=NO_CACHE), at(DEEPSEEK, MTP)),
    Pair(
        "tool-parser-bursts",
        at(DEEPSEEK, MTP, "tool-parser-bursts", flags=f"{TOOLS} glm45"),
        at(DEEPSEEK, MTP, flags=f"{TOOLS} deepseek_v3"),
    ),
    Pair(
        "lookup-tools-text",
        at(QWEN36, NGRAM, "lookup-tools-text", "async-off", "ngram-filler-counted", flags=f"{TOOLS} hermes"),
        at(LLAMA, NGRAM, "async-off", "ngram-filler-counted", flags=f"{TOOLS} hermes"),
    ),
    Pair("thinking-budget-new-runner", asks("0.27", "thinking-budget-new-runner"), asks("0.28")),
    Pair(
        "dflash-quantised",
        at(LLAMA, {**DFLASH, "model": "org/block-nvfp4"}, "dflash-quantised"),
        at(LLAMA, {**DFLASH, "model": "org/model-NVFP4-DFlash"}),
    ),
    Pair(
        "mtp-head-quantised",
        at("m", MTP, "mtp-head-quantised", target="deepseek-awq"),
        at("m", MTP, target="deepseek-awq-kept"),
    ),
    Pair(
        "draft-sampling-0.28",
        at(LLAMA, {**DFLASH, "model": "org/x-DFlash2"}, "draft-sampling-0.28", version="0.28"),
        at(LLAMA, {**DFLASH, "model": "org/x-DFlash2"}, version="0.29"),
    ),
    Pair(
        "dflash-fp8-cache",
        at(LLAMA, DFLASH, "dflash-fp8-cache", "dflash-windows", *OLD, flags="--kv-cache-dtype fp8", version="0.22"),
        at(LLAMA, DFLASH, "fp8-cache-crash", flags="--kv-cache-dtype fp8", version="0.25"),
    ),
    Pair("fp8-cache-crash", at(LLAMA, DFLASH, "fp8-cache-crash", flags="--kv-cache-dtype fp8"), at(LLAMA, DFLASH)),
    Pair("dflash-windows", at(LLAMA, DFLASH, "dflash-windows", version="0.24"), at(LLAMA, DFLASH, version="0.25")),
    Pair(
        "dynamic-k-not-free",
        at(LLAMA, {**EAGLE, **TABLE}, "dynamic-k-not-free", version="0.24"),
        at(LLAMA, {**EAGLE, "num_speculative_tokens_per_batch_size": [[1, 16, 3], [17, 256, 1]]}, version="0.24"),
    ),
    Pair(
        "dynamic-k-full-graphs",
        at(DEEPSEEK, {**spec("mtp", 3), **TABLE}, "dynamic-k-full-graphs"),
        at(LLAMA, {**EAGLE, **TABLE}),
    ),
    Pair(
        "pipeline-no-async",
        at(LLAMA, EAGLE, "pipeline-no-async", "async-switched-off", flags="-pp 2 --no-async-scheduling"),
        at(LLAMA, EAGLE, flags="-pp 2"),
    ),
    Pair(
        "pipeline-broadcast",
        at(LLAMA, EAGLE, "pipeline-broadcast", *BUBBLE, flags="-pp 2", version="0.17"),
        at(LLAMA, EAGLE, flags="-pp 2", version="0.30"),
    ),
    Pair(
        "structured-slow-tokenizer",
        at(
            "moonshotai/Kimi-K2.6",
            EAGLE,
            "structured-slow-tokenizer",
            flags="--structured-outputs-config.backend xgrammar",
        ),
        at("moonshotai/Kimi-K2.6", EAGLE),
    ),
    Pair(
        "draft-context-crash",
        at(LLAMA, EAGLE, "draft-context-crash", target="llama", drafter="short-head"),
        at(LLAMA, EAGLE, target="llama", drafter="short-head", flags="--max-model-len 2048"),
    ),
    Pair(
        "draft-context-crash-early",
        at(LLAMA, EAGLE, "draft-context-crash-early", version="0.24", target="llama", drafter="short-head"),
        at(LLAMA, EAGLE, version="0.24", target="llama", drafter="eagle3-head"),
    ),
    Pair(
        "stretched-context",
        at(DEEPSEEK, MTP, "stretched-context", flags="""--hf-overrides '{"rope_parameters": {"factor": 4}}'"""),
        at(DEEPSEEK, MTP, flags="""--hf-overrides '{"num_hidden_layers": 4}'"""),
    ),
    Pair("eagle-embeddings-by-rank", ranks("someone/Llama-3.1-70B-AWQ", "eagle-embeddings-by-rank"), ranks(LLAMA)),
    Pair(
        "piecewise-unaligned",
        at(QWEN36, MTP, "piecewise-unaligned", *HYBRID, flags=PIECEWISE),
        at(QWEN36, MTP, *HYBRID, flags=FULL),
    ),
    Pair(
        "assistant-disaggregated",
        at(GEMMA4, ASSISTED, "assistant-disaggregated", "disaggregated-both-sides", flags=TRANSFER),
        at(GEMMA4, ASSISTED),
    ),
    Pair(
        "dspark-disaggregated",
        at(LLAMA, DSPARK, "dspark-disaggregated", "disaggregated-both-sides", flags=TRANSFER),
        at(LLAMA, DSPARK),
    ),
    Pair(
        "sparse-mla-several",
        at("zai-org/GLM-5-FP8", spec("mtp", 3), "sparse-mla-several", *BUBBLE, version="0.16"),
        at("zai-org/GLM-5-FP8", spec("mtp", 3), *BUBBLE, version="0.17"),
    ),
    Pair(
        "ngram-gpu-async",
        at(LLAMA, spec("ngram_gpu"), "ngram-gpu-async", *OLD, version="0.18"),
        at(LLAMA, spec("ngram_gpu"), "async-switched-off", *OLD, version="0.18", flags="--no-async-scheduling"),
    ),
    Pair(
        "mtp-long-context",
        at(DEEPSEEK, MTP, "mtp-long-context", flags="--max-model-len 131072"),
        at(DEEPSEEK, MTP, flags="--max-model-len 32768"),
    ),
    Pair(
        "ngram-silent-v1",
        Case("VLLM_USE_V1=1 " + at(LLAMA, NGRAM).text, ("ngram-silent-v1", *OLD), "0.8.4"),
        Case("VLLM_USE_V1=1 " + at(LLAMA, NGRAM).text, OLD, "0.8.5"),
    ),
    Pair(
        "vision-eagle-positions",
        at("Qwen/Qwen3-VL-4B-Instruct", EAGLE, "vision-eagle-positions", *BUBBLE, version="0.15.1"),
        at("Qwen/Qwen3-VL-4B-Instruct", EAGLE, *BUBBLE, version="0.16"),
    ),
    Pair(
        "cpu-drafts-text",
        Case("VLLM_CPU_KVCACHE_SPACE=4 " + at(LLAMA, EAGLE, flags="--enforce-eager").text, ("cpu-drafts-text",)),
        Case(
            "VLLM_CPU_KVCACHE_SPACE=4 " + at(LLAMA, COUPLED, flags="--enforce-eager").text, ("async-off", "old-runner")
        ),
    ),
]
