"""Enumerated values of speculative_config's keys, and the vLLM releases that have them."""

from __future__ import annotations

from typing import Literal

from augury.config.keys import OWN

MoeBackend = Literal[
    "auto",
    "triton",
    "batched_triton",
    "deep_gemm",
    "deep_gemm_mega_moe",
    "cutlass",
    "flashinfer_trtllm",
    "flashinfer_cutlass",
    "flashinfer_cutedsl",
    "flashinfer_moe_ep_cutedsl",
    "flashinfer_b12x",
    "b12x",
    "flashinfer_moe_ep_mega_deep_gemm",
    "marlin",
    "humming",
    "triton_unfused",
    "aiter",
    "aiter_mega_moe",
    "aiter_triton_mxfp4_bf16",
    "flydsl",
    "hpc",
    "emulation",
    "rdna3",
]
MOE_SINCE: dict[str, tuple[str, str | None]] = {
    name: (since, None)
    for since, names in {
        "0.20": ("deep_gemm_mega_moe", "emulation"),
        "0.21": ("humming", "triton_unfused"),
        "0.22": ("flashinfer_b12x",),
        "0.24": ("flydsl",),
        "0.25": ("hpc",),
        "0.27": ("batched_triton",),
        "0.29": ("b12x", "flashinfer_moe_ep_mega_deep_gemm"),
        "0.30": ("aiter_triton_mxfp4_bf16", "rdna3"),
        "0.32": ("flashinfer_moe_ep_cutedsl", "aiter_mega_moe"),
    }.items()
    for name in names
}
KVCacheType = Literal[
    "auto",
    "float16",
    "bfloat16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
    "ultraquant_4bit",
    "int4_per_token_head",
    "int8_per_token_head",
    "fp8_per_token_head",
    "nvfp4",
    "nvfp4_4over6",
]
RULES_SINCE: dict[str, tuple[str, str | None]] = {
    **dict.fromkeys(("coupled", "typical", "entropy", "ascend_block"), (OWN, None)),
    "standard": ("0.21", None),
    "block": ("0.25", None),
    "synthetic": ("0.19", None),
    "strict": ("0.18", "0.21"),
    "probabilistic": ("0.18", "0.21"),
}
NO_TYPICAL = "remove it: vLLM has no typical acceptance any more"  # what to do with its two keys
SampleMethod = Literal["coupled", "standard", "block", "synthetic", "typical", "entropy", "ascend_block"]
LOSSY = ("synthetic", "typical", "entropy", "ascend_block")
