"""Commands from public reports whose outcome is known, and what the doctor should have said of each beforehand.

The command lines are facts of the reports, shortened to the flags that matter; the sentences are ours. `outcome` is
what happened: refused (did not start), crashed, wrong (text or tool calls), slow (little or nothing accepted, or no
speculation), works. `ids` are the findings that name the cause; none: there is no rule for it, and it counts as missed.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Report(NamedTuple):
    """A command that somebody ran, and what came of it."""

    source: str
    release: str
    outcome: str
    command: str
    ids: tuple[str, ...] = ()


def serve(target: str, config: dict[str, Any] | None, flags: str = "", before: str = "") -> str:
    """A `vllm serve` line."""
    said = f"--speculative-config '{json.dumps(config)}'" if config else ""
    return " ".join(filter(None, (before, f"vllm serve {target}", flags, said)))


def mtp(k: int, method: str = "mtp", **keys: Any) -> dict[str, Any]:
    """Layers of the target's own, or an assistant."""
    return {"method": method, "num_speculative_tokens": k, **keys}


def model(name: str, k: int, method: str | None = None, **keys: Any) -> dict[str, Any]:
    """A drafter of its own."""
    head = {"method": method} if method else {}
    return {**head, "model": name, "num_speculative_tokens": k, **keys}


NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
CACHE, TOOLS = "--enable-prefix-caching", "--enable-auto-tool-choice --tool-call-parser"
NIXL = """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""
GEMMA, QWEN36, QWEN38 = "google/gemma-4-31B-it", "Qwen/Qwen3.6-27B", "Qwen/Qwen3.8-27B"
TABLE = [[1, 48, 4], [49, 1024, 1]]

REPORTS = [
    Report(
        "vllm#52069", "0.26.1", "refused", serve("<model>", mtp(3), "--pipeline-parallel-size 4"), ("pipeline-mtp",)
    ),
    Report(
        "vllm#43559",
        "0.25",
        "wrong",
        serve("RedHatAI/Qwen3.6-35B-A3B-FP8-dynamic", mtp(2), CACHE),
        ("hybrid-prefix-cache-text",),
    ),
    Report(
        "vllm-ascend#17338",
        "0.23",
        "wrong",
        serve("/path/to/Qwen3.8-27B-w8a8-310p", mtp(1, "qwen3_5_mtp"), f"-tp 4 --quantization ascend {CACHE}"),
        ("hybrid-prefix-cache-text",),
    ),
    Report(
        "vllm-ascend#9024",
        "0.19.1",
        "crashed",
        serve("Eco-Tech/Qwen3.5-27B-w8a8-mtp", mtp(3, "qwen3_5_mtp"), CACHE),
        ("hybrid-prefix-cache-text",),
    ),
    Report(
        "vllm#39809",
        "0.19",
        "crashed",
        serve("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", mtp(1), f"{CACHE} --kv-cache-dtype fp8 -tp 4"),
        ("hybrid-prefix-cache-text",),
    ),
    Report(
        "vllm#53912",
        "0.27.1",
        "wrong",
        serve(QWEN38, mtp(2), f"-tp 2 --kv-cache-dtype fp8_e4m3 {CACHE} --mamba-cache-mode align --max-num-seqs 4"),
        ("hybrid-prefix-cache-text",),
    ),
    Report("vllm#39273", "0.18.1", "wrong", serve("morphllm/fast-apply-v4-axolotl-fp8", NGRAM, "--enforce-eager")),
    Report(
        "vllm#56077",
        "0.28",
        "wrong",
        serve(QWEN36, NGRAM, f"{TOOLS} qwen3_coder --reasoning-parser qwen3"),
        ("tool-parser-bursts", "lookup-tools-text"),
    ),
    Report(
        "vllm#40875",
        "0.26.1",
        "wrong",
        serve("Qwen/Qwen3.6-35B-A3B-FP8", NGRAM, f"--max-model-len 8192 {TOOLS} qwen3_coder"),
        ("lookup-tools-text",),
    ),
    Report(
        "vllm#41967",
        "0.21",
        "wrong",
        serve(GEMMA, model(f"{GEMMA}-assistant", 4), f"{CACHE} {TOOLS} gemma4"),
        ("tool-parser-bursts",),
    ),
    Report(
        "vllm#55284",
        "0.28",
        "wrong",
        serve("Qwen/Qwen3.8-27B-FP8", model("z-lab/Qwen3.8-27B-DFlash2", 7, "dflash"), f"{TOOLS} qwen3_coder"),
        ("tool-parser-bursts",),
    ),
    Report(
        "vllm#42005",
        "0.20.2",
        "refused",
        serve(GEMMA, model(f"{GEMMA}-assistant", 4), "--async-scheduling"),
        ("assistant-too-early",),
    ),
    Report(
        "vllm#42180",
        "0.21",
        "works",
        serve("google/gemma-4-E4B-it", mtp(4, model="gg-hf-am/gemma-4-E4B-it-assistant"), "--max-model-len 8192"),
    ),
    Report(
        "vllm#42775",
        "0.20",
        "refused",
        serve("/models/DeepSeek-R1-Distill-Qwen-32B-FP8", model("/models/DeepSeek-R1-Distill-Qwen-1.5B", 5)),
        ("padding-by-name",),
    ),
    Report(
        "vllm#31883",
        "0.13",
        "refused",
        serve("/Qwen/Qwen3-4B", model("/Qwen/Qwen3-0___6B", 5), "--port 8199"),
        ("method-gap",),
    ),
    Report(
        "vllm#21797",
        "0.10",
        "refused",
        "python -m vllm.entrypoints.openai.api_server --model ./facebook-opt-6.7b --seed 42 -tp 1 --speculative_config "
        """'{"model": "./facebook-opt-125m", "num_speculative_tokens": 5}'""",
        ("method-gap",),
    ),
    Report(
        "vllm#40394",
        "0.20",
        "works",
        serve("nm-testing/dflash-qwen3-8b-speculators", None, "--attention-backend FLEX_ATTENTION"),
    ),
    Report(
        "vllm#41559",
        "0.20",
        "refused",
        serve(QWEN36, model("z-lab/Qwen3.6-27B-DFlash", 7, "dflash"), "--kv-cache-dtype fp8_e5m2"),
        ("dflash-fp8-cache",),
    ),
    Report(
        "vllm#41559, a comment",
        "0.25",
        "crashed",
        serve(
            "/models/Qwen3.6-27B-NVFP4", model("/models/dspark", 8, "dspark"), "--kv-cache-dtype fp8 --enforce-eager"
        ),
        ("fp8-cache-crash",),
    ),
    Report(
        "vllm#25368", "0.10.2", "crashed", serve("Qwen/Qwen3-Next-80B-A3B-Instruct", mtp(2, "qwen3_next_mtp"), "-tp 4")
    ),
    Report(
        "vllm#37150",
        "0.18",
        "slow",
        serve("/model/Qwen3-1.7B", {**NGRAM, "method": "ngram_gpu"}, "--no-enable-prefix-caching --async-scheduling"),
    ),
    Report(
        "LLama-GUI#165",
        "0.23",
        "refused",
        serve("Qwen/Qwen3-4B-Instruct-2507", mtp(1, "qwen3_next_mtp"), f"--max-model-len 32768 {TOOLS} qwen3_coder"),
        ("mtp-target-without",),
    ),
    Report(
        "vllm#48894",
        "0.24",
        "crashed",
        serve("meta-llama/Llama-3.1-8B-Instruct", model("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", 3, "eagle3")),
    ),
    Report(
        "vllm#57941",
        "0.29",
        "crashed",
        serve(
            "RedHatAI/Muse-Glimmer-30B-FP8-block",
            model("z-lab/Muse-Glimmer-30B-DFlash2", 15, "dflash"),
            """-tp 2 --hf-overrides '{"max_position_embeddings": 393216}'""",
        ),
        ("stretched-context",),
    ),
    Report(
        "vllm#34607",
        "0.15.1",
        "crashed",
        serve("Qwen/Qwen3-VL-4B-Instruct", model("taobao-mnn/Qwen3-VL-4B-Instruct-Eagle3", 3, "eagle3")),
        ("vision-eagle-positions",),
    ),
    Report(
        "vllm#26328",
        "0.11",
        "refused",
        serve(
            "/models/gpt-oss-120b",
            model("nvidia/gpt-oss-120b-Eagle3", 3, "eagle3", draft_tensor_parallel_size=1),
            f"--tensor-parallel-size 2 {TOOLS} openai",
        ),
    ),
    Report(
        "vllm#19174",
        "0.9.0.1",
        "refused",
        serve(
            "meta-llama/Llama-3.3-70B-Instruct",
            model("yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", 5, "eagle3", draft_tensor_parallel_size=8),
            "-tp 8",
        ),
    ),
    Report(
        "vllm#24967",
        "0.10.1",
        "refused",
        serve("Qwen/Qwen2-7B-Instruct", model("yuhuili/EAGLE-Qwen2-7B-Instruct", 4, "eagle")),
        ("eagle-head-unregistered",),
    ),
    Report("speculators#149", "0.11", "refused", serve("RedHatAI/Qwen3-32B-speculator.eagle3", None, f"-tp 2 {CACHE}")),
    Report(
        "vllm#50158",
        "0.26",
        "slow",
        serve(
            "cyankiwi/gemma-4-31B-it-AWQ-4bit",
            model("RedHatAI/gemma-4-31B-it-speculator.eagle3", 3, "eagle3"),
            "-tp 2 --attention-backend TRITON_ATTN",
            "VLLM_USE_V2_MODEL_RUNNER=0",
        ),
        ("eagle-embeddings-by-rank",),
    ),
    Report(
        "vllm#48494",
        "0.28",
        "refused",
        serve("zai-org/GLM-5.3-Flash", mtp(4, num_speculative_tokens_per_batch_size=TABLE), "-tp 8"),
        ("dynamic-k-full-graphs",),
    ),
    Report(
        "vllm#46324",
        "0.25.1",
        "crashed",
        serve(
            "nvidia/Qwen3.6-27B-NVFP4",
            mtp(3),
            f"""--max-num-seqs 6 {CACHE} --compilation-config '{{"cudagraph_mode":"PIECEWISE"}}'""",
        ),
        ("piecewise-unaligned",),
    ),
    Report(
        "vllm#40756, a comment",
        "0.20",
        "works",
        serve(
            "Qwen/Qwen3.6-27B-FP8",
            mtp(3),
            f"--max-num-seqs 32 --max-model-len 262144 --enforce-eager {TOOLS} qwen3_coder",
        ),
    ),
    Report(
        "vllm#25250",
        "0.10.2",
        "slow",
        serve("nm-testing/SpeculatorLlama3-1-8B-Eagle3-converted-0717-quantized", None, "--seed 42 -tp 4"),
        ("speculator-not-speculating",),
    ),
    Report(
        "vllm#25784",
        "0.12",
        "works",
        serve("Qwen/Qwen3-4B-FP8", mtp(12, "suffix", suffix_decoding_max_cached_requests=0), "--port 9001"),
    ),
    Report(
        "vllm#29184",
        "0.18",
        "works",
        serve(
            "Qwen/Qwen3-1.7B",
            {**NGRAM, "method": "ngram_gpu"},
            "--max-num-seqs 128 --max-model-len 2048 --async-scheduling",
        ),
    ),
    Report(
        "vllm#24662",
        "0.10.2",
        "crashed",
        serve("meta-llama/Meta-Llama-3-8B-Instruct", model("yuhuili/EAGLE-LLaMA3-Instruct-8B", 4, "eagle")),
    ),
    Report("vllm#44184", "0.21", "crashed", serve("deepseek-v3-fp8", mtp(3), f"-tp 8 --kv-cache-dtype fp8 {NIXL}")),
    Report(
        "vllm#46694",
        "0.26",
        "works",
        serve("/mnt/data1/models/zai-org/GLM-5.2-FP8", mtp(1), f"-tp 8 {TOOLS} glm47 --reasoning-parser glm45 {NIXL}"),
    ),
    Report(
        "vllm#54926",
        "0.28",
        "slow",
        serve(
            "RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic",
            mtp(3, model="google/gemma-4-26B-A4B-it-assistant"),
            f"-tp 2 {NIXL}",
        ),
        ("assistant-disaggregated",),
    ),
    Report(
        "vllm#48221",
        "0.26",
        "crashed",
        serve("zai-org/GLM-5.2-FP8", model("org/GLM-5.2-dspark", 4, "dspark"), NIXL),
        ("dspark-disaggregated",),
    ),
    Report(
        "vllm-ascend#16160",
        "0.23",
        "wrong",
        "\n".join(serve("Qwen/Qwen3.5-397B-A17B", mtp(k, "qwen3_5_mtp"), NIXL) for k in (1, 3)),
        ("disaggregated-k-differs",),
    ),
    Report(
        "recipes PR#563",
        "0.23",
        "works",
        serve(
            "mistralai/Mistral-Medium-3.5-128B",
            model("mistralai/Mistral-Medium-3.5-128B-EAGLE", 3, "eagle", max_model_len="65536"),
            "-tp 8",
        ),
    ),
    Report(
        "vllm#34552",
        "0.16",
        "crashed",
        "vllm serve zai-org/GLM-5-FP8 -tp 4 --speculative-config.method mtp "
        "--speculative-config.num_speculative_tokens 3",
        ("sparse-mla-several",),
    ),
    Report(
        "vllm-ascend#9290",
        "0.21",
        "slow",
        serve("/path/to/Qwen3.5-122B-A10B", mtp(13), "-tp 8 --max-num-seqs 8 --no-async-scheduling"),
        ("mtp-far-beyond-depth",),
    ),
]
