"""Pairs about what fits: a command that shows each entry of fits.yaml, and a neighbour that does not."""

from __future__ import annotations

import json
from typing import Any

from doctor_cases import DEEPSEEK, EAGLE3, HYBRID, LLAMA, NGRAM, NGRAM_NOTES, OLD, Case, Pair, spec

QWEN2, QWEN3, GEMMA4 = "Qwen/Qwen2-7B-Instruct", "Qwen/Qwen3-32B", "google/gemma-4-31B-it"
QWEN35 = "Qwen/Qwen3.5-397B-A17B"
ASSISTANT = "google/gemma-4-31B-it-assistant"
SPECULATOR = "RedHatAI/Qwen3-8B-speculator.eagle3"
BUBBLE = ("zero-bubble", *OLD)
TRANSFER = "--kv-transfer-config '{}'"


def at(served: str, config: dict[str, Any] | None, *ids: str, flags: str = "", **rest: Any) -> Case:
    """A target served with a configuration."""
    head = f"vllm serve {served}" + (f" --speculative-config '{json.dumps(config)}'" if config else "")
    return Case(f"{head} {flags}".strip(), ids, **rest)


def draft(model: str, k: int = 4, **keys: Any) -> dict[str, Any]:
    """A draft model."""
    return spec("draft_model", k, model=model, **keys)


def servers(target: str, *lengths: int, ids: tuple[str, ...] = ()) -> Case:
    """A prefill and a decode server in one file, each with these findings."""
    said = [at(target, spec("mtp", k), flags=TRANSFER).text for k in lengths]
    return Case("\n".join(said) + "\n", ("disaggregated-both-sides", *ids) * 2, None, "run.sh")


EAGLE = spec("eagle3", model="org/eagle3-head")
FITS = [
    Pair(
        "pipeline-mtp",
        at(DEEPSEEK, spec("mtp", 1), "pipeline-mtp", flags="-pp 2", version="0.29"),
        at(DEEPSEEK, spec("mtp", 1), flags="-pp 2", version="0.30"),
    ),
    Pair("mtp-far-beyond-depth", at(DEEPSEEK, spec("mtp", 13), "mtp-far-beyond-depth"), at(DEEPSEEK, spec("mtp", 3))),
    Pair(
        "disaggregated-k-differs",
        servers(QWEN35, 1, 3, ids=("disaggregated-k-differs", *HYBRID)),
        servers(QWEN35, 3, 3, ids=HYBRID),
    ),
    Pair("disaggregated-k-apart", servers(DEEPSEEK, 1, 3, ids=("disaggregated-k-apart",)), servers(DEEPSEEK, 3, 3)),
    Pair("drafter-served", at(EAGLE3, None, "drafter-served"), at("nvidia/Eagle2.5-8B", None)),
    Pair(
        "speculator-served-too-early",
        at(SPECULATOR, None, "speculator-served-too-early", version="0.10.0"),
        at(SPECULATOR, None, version="0.11"),
    ),
    Pair(
        "speculator-not-speculating",
        at(SPECULATOR, None, "speculator-not-speculating", version="0.10.2"),
        at(SPECULATOR, None, version="0.11"),
    ),
    Pair(
        "eagle-head-unregistered",
        at(QWEN2, spec("eagle", model="yuhuili/EAGLE-Qwen2-7B-Instruct"), "eagle-head-unregistered"),
        at(QWEN2, spec("eagle3", model="org/EAGLE3-Qwen2-7B-Instruct")),
    ),
    Pair(
        "speculator-override-dropped",
        at(SPECULATOR, {"num_speculative_tokens": 5}, "speculator-override-dropped", version="0.27"),
        at(SPECULATOR, {"num_speculative_tokens": 5}, version="0.28"),
    ),
    Pair(
        "assistant-too-early",
        at(
            GEMMA4,
            {"model": ASSISTANT, "num_speculative_tokens": 4},
            "assistant-too-early",
            "method-not-written",
            *OLD,
            version="0.20.2",
        ),
        at(GEMMA4, spec("mtp", 4, model=ASSISTANT), *OLD, version="0.21"),
    ),
    Pair(
        "assistant-as-draft-model",
        at(GEMMA4, draft(ASSISTANT), "assistant-as-draft-model"),
        at(GEMMA4, spec("mtp", 4, model=ASSISTANT)),
    ),
    Pair(
        "vocabulary-by-name",
        at(QWEN3, draft("meta-llama/Llama-3.2-1B"), "vocabulary-by-name"),
        at(QWEN3, draft("Qwen/Qwen3-0.6B")),
    ),
    Pair(
        "padding-by-name",
        at("Qwen/Qwen2.5-72B-Instruct", draft("Qwen/Qwen2.5-0.5B-Instruct"), "padding-by-name"),
        at(
            "Qwen/Qwen2.5-72B-Instruct", draft("Qwen/Qwen2.5-0.5B-Instruct", use_heterogeneous_vocab=True), "old-runner"
        ),
    ),
    Pair(
        "tokenizer-by-name",
        at(QWEN3, spec("eagle3", model="org/eagle3-llama-3.1"), "tokenizer-by-name"),
        at(QWEN3, spec("eagle3", model="org/eagle3-qwen3-32b")),
    ),
    Pair(
        "draft-not-smaller",
        at("Qwen/Qwen3-30B-A3B", draft("Qwen/Qwen3-4B"), "draft-not-smaller"),
        at("Qwen/Qwen3-32B", draft("Qwen/Qwen3-1.7B")),
    ),
    Pair("draft-sizable", at(QWEN3, draft("Qwen/Qwen3-8B"), "draft-sizable"), at(QWEN3, draft("Qwen/Qwen3-0.6B"))),
    Pair(
        "lora-too-early",
        at(LLAMA, NGRAM, "lora-too-early", *OLD, flags="--enable-lora", version="0.9.1"),
        at(LLAMA, NGRAM, *OLD, flags="--enable-lora", version="0.11.1"),
    ),
    Pair(
        "multimodal-draft-refused",
        at("google/gemma-3-27b-it", draft("google/gemma-3-1b-it", 2), "multimodal-draft-refused", *OLD, version="0.20"),
        at(
            "google/gemma-3-27b-it",
            draft("google/gemma-3-1b-it", 2),
            *OLD,
            version="0.20",
            flags="--language-model-only",
        ),
    ),
    Pair(
        "multimodal-draft-blind",
        at("google/gemma-3-27b-it", draft("google/gemma-3-1b-it", 2), "multimodal-draft-blind"),
        at("google/gemma-3-27b-it", draft("google/gemma-3-1b-it", 2), flags="--language-model-only"),
    ),
    Pair(
        "capture-below-rows",
        at(LLAMA, EAGLE, "capture-below-rows", flags="--max-num-seqs 32 --max-cudagraph-capture-size 64"),
        at(LLAMA, EAGLE, flags="--max-num-seqs 16 --max-cudagraph-capture-size 64"),
    ),
    Pair(
        "lookup-k-large",
        at(LLAMA, spec("ngram", 300), "lookup-k-large", *NGRAM_NOTES),
        at(LLAMA, spec("ngram", 32), *NGRAM_NOTES),
    ),
    Pair(
        "target-too-new",
        at("Qwen/Qwen3.5-27B", None, "target-too-new", version="0.16"),
        at("Qwen/Qwen3.5-27B", None, version="0.17"),
    ),
]
