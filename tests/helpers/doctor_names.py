"""Pairs about names: attention back ends, quantisations, targets known by name alone, parameters of requests."""

from __future__ import annotations

import json

from doctor_cases import DEEPSEEK, HEAD, HYBRID, OLD, Case, Pair, bad, good, spec

DFLASH = spec("dflash", 15, model="org/block-drafter")
HIDDEN = spec("extract_hidden_states", 1, draft_model_config={"hf_config": {"eagle_aux_hidden_state_layer_ids": [2]}})
CONNECTOR = "--kv-transfer-config '{}'"


def on(target: str, *ids: str, version: str | None = None, **keys: str) -> Case:
    """MTP on a target of which only the name is known."""
    return Case(f"vllm serve {target} --speculative-config '{json.dumps({**spec('mtp', 1), **keys})}'", ids, version)


def program(parameters: str, *ids: str, version: str = "0.32") -> Case:
    """A program whose engine speculates, and what its requests ask for."""
    text = f"""
from vllm import LLM, SamplingParams
llm = LLM("m", speculative_config={{"method": "eagle3", "model": "a/eagle3", "num_speculative_tokens": 3}})
llm.generate("Hello", SamplingParams(temperature=0.7, {parameters}))
"""
    return Case(text, ids, version, "run.py")


ERAS = {"0.13": ("async-not-default", *OLD), "0.15": ("zero-bubble", *OLD), "0.16": ("zero-bubble", *OLD),
        "0.17": ("zero-bubble", *OLD), "0.20": OLD, "0.21": OLD, "0.32": ()}
JSON_ASKED = "structured_outputs=StructuredOutputsParams(json=schema)"

NAMES = [
    Pair("backend-gone", bad(HEAD, "backend-gone", flags=("--attention-backend TREE_ATTN",)),
         good(HEAD, *OLD, version="0.20", flags=("--attention-backend TREE_ATTN",))),
    Pair("backend-misspelt", bad({**HEAD, "attention_backend": "flash-attn"}, "backend-misspelt"),
         good({**HEAD, "attention_backend": "flash_attn"})),
    Pair("backend-unknown", bad(HEAD, "backend-unknown", flags=("--attention-backend FLASH_ATTENTION_2",)),
         good(HEAD, flags=("--attention-backend flashinfer",))),
    Pair("quantization-unknown", bad({**HEAD, "quantization": "fp88"}, "quantization-unknown"),
         good({**HEAD, "quantization": "fp8"}, flags=("--quantization compressed-tensors",))),
    Pair("dflash-backend-causal", bad({**DFLASH, "attention_backend": "TRITON_MLA"}, "dflash-backend-causal"),
         good({**DFLASH, "attention_backend": "FLEX_ATTENTION"})),
    Pair("hidden-states-mla",
         bad(HIDDEN, "hidden-states-mla", flags=(CONNECTOR, "--attention-backend FLASHMLA")),
         good(HIDDEN, flags=(CONNECTOR, "--attention-backend FLASH_ATTN"))),
    Pair("quantization-inherited", bad({**spec("mtp", 1), "quantization": "fp8"}, "quantization-inherited"),
         good({**HEAD, "quantization": "fp8"})),
    Pair("mtp-target-without", on("meta-llama/Llama-3.1-8B", "mtp-target-without"), on(DEEPSEEK)),
    Pair("mtp-needs-assistant", on("google/gemma-4-E4B-it", "mtp-needs-assistant"),
         on("google/gemma-4-E4B-it", model="google/gemma-4-E4B-it-assistant")),
    Pair("mtp-target-too-early",
         on("moonshotai/Kimi-K3", "mtp-target-too-early", "target-too-new", *HYBRID, version="0.26"),
         on("moonshotai/Kimi-K3", *HYBRID, version="0.27")),
    Pair("mtp-target-unknown", on("acme/house-model-9b", "mtp-target-unknown"), on("zai-org/GLM-4.6")),
    Pair("mtp-layers-may-be-lost", on("someone/DeepSeek-V3-AWQ", "mtp-layers-may-be-lost"), on(DEEPSEEK)),
    Pair("sampling-request-refused", program("min_p=0.05", "sampling-request-refused"), program("min_p=0.0")),
    Pair("sampling-request-ignored",
         program("logit_bias={42: -100}", "sampling-request-ignored", *ERAS["0.13"], version="0.13"),
         program("logit_bias=None", *ERAS["0.13"], version="0.13")),
    Pair("structured-request-too-early",
         program(JSON_ASKED, "structured-request-too-early", *ERAS["0.15"], version="0.15"),
         program(JSON_ASKED, *ERAS["0.16"], version="0.16")),
    Pair("min-tokens-too-early",
         program("min_tokens=8", "min-tokens-too-early", *ERAS["0.16"], version="0.16"),
         program("min_tokens=8", *ERAS["0.17"], version="0.17")),
    Pair("thinking-budget-too-early",
         program("thinking_token_budget=512", "thinking-budget-too-early", *ERAS["0.20"], version="0.20"),
         program("thinking_token_budget=512", *ERAS["0.21"], version="0.21")),
    Pair("head-of-another-size", bad(spec("eagle3", model="a/EAGLE3-LLaMA3.3-70B"), "head-of-another-size"),
         good(HEAD)),
    Pair("draft-model-has-mtp", bad(spec("draft_model", model="Qwen/Qwen3.5-0.8B"), "draft-model-has-mtp"),
         good(spec("draft_model", model="meta-llama/Llama-3.2-1B"), "draft-sizable")),
    Pair("decode-context-parallel",
         bad(HEAD, "decode-context-parallel", flags=("--decode-context-parallel-size 2",)),
         good(spec("mtp", 1), flags=("--decode-context-parallel-size 2",))),
    Pair("log-stats-off", bad(HEAD, "log-stats-off", flags=("--disable-log-stats",)), good(HEAD)),
]
