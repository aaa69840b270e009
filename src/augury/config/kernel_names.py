"""vLLM's own names for the drafter's kernels: attention backends and quantisations, by release."""

from __future__ import annotations

from difflib import get_close_matches

from augury.config.versions import Version, valid_in

# Backends by the release that added them, from the one that let a drafter have its own.
BACKENDS: dict[str, str] = {
    "0.21": (
        "CPU_ATTN CUSTOM CUTLASS_MLA FLASHINFER FLASHINFER_MLA FLASHINFER_MLA_SPARSE FLASHMLA FLASHMLA_SPARSE "
        "FLASH_ATTN FLASH_ATTN_DIFFKV FLASH_ATTN_MLA FLEX_ATTENTION NO_ATTENTION ROCM_AITER_FA ROCM_AITER_MLA "
        "ROCM_AITER_MLA_SPARSE ROCM_AITER_TRITON_MLA ROCM_AITER_UNIFIED_ATTN ROCM_ATTN TOKENSPEED_MLA TORCH_SDPA "
        "TRITON_ATTN TRITON_MLA TURBOQUANT XPU_MLA_SPARSE"
    ),
    "0.23": "FLASHINFER_MLA_SPARSE_DSV4 FLASHMLA_SPARSE_DSV4 ROCM_FLASHMLA_SPARSE_DSV4",
    "0.24": "FLASHINFER_MLA_SPARSE_SM120 MINIMAX_M3_SPARSE TRITON_ATTN_DIFFKV",
    "0.25": "FLASH_ATTN_MLA_SPARSE HPC_ATTN",
    "0.27": "CUTLASS_MSA TRITON_MSA",
    "0.28": (  # some of these came a release or two later: of 0.28 to 0.31 only the sum is known
        "AMX_MLA B12X CPU_MLA FLASHINFER_MLA_SPARSE_DSV41 FLASHINFER_MLA_SPARSE_SM90 FLASHMLA_MEGA_ATTN_DSV41 "
        "FLASHMLA_SPARSE_DSV41 ROCM_SEGMENTED_ATTN TRITON_FLASHINFER TRITON_FLASH_ATTN ULTRAQUANT"
    ),
}

# Quantisations, by the releases that have them; a plugin may bring others.
QUANTIZATIONS: dict[tuple[str, str | None], str] = {
    ("0.8.2", None): (
        "awq awq_marlin compressed-tensors experts_int8 fbgemm_fp8 fp8 gptq gptq_marlin modelopt moe_wna16 quark"
    ),
    ("0.8.2", "0.28"): "bitsandbytes",
    ("0.8.2", "0.24"): "gguf",
    ("0.8.2", "0.19"): "ptpc_fp8",
    ("0.8.2", "0.16"): "gptq_marlin_24 ipex",
    ("0.8.2", "0.15"): "deepspeedfp hqq",
    ("0.8.2", "0.14"): "tpu_int8",
    ("0.8.2", "0.10.2"): "marlin neuron_quant qqq",
    ("0.8.2", "0.10.1"): "aqlm",
    ("0.8.2", "0.9"): "nvfp4",
    ("0.8.4", None): "torchao",
    ("0.8.5", "0.16"): "bitblas gptq_bitblas",
    ("0.9", "0.15"): "auto-round",
    ("0.9", None): "modelopt_fp4",
    ("0.9.2", "0.15"): "rtn",
    ("0.10", None): "inc",
    ("0.10.1", None): "mxfp4",
    ("0.10.2", "0.20"): "petit_nvfp4",
    ("0.11.1", None): "fp_quant",
    ("0.12", "0.14"): "cpu_gptq",
    ("0.12", "0.23"): "cpu_awq",
    ("0.16", None): "modelopt_mxfp8",
    ("0.17", None): "modelopt_mixed",
    ("0.19", None): "mxfp8",
    ("0.20", None): (
        "deepseek_v4_fp8 fp8_per_block fp8_per_tensor gpt_oss_mxfp4 humming int8_per_channel_weight_only online"
    ),
    ("0.22", None): "auto_gptq",
    ("0.24", None): "auto_awq fp8_per_channel",
    ("0.26", None): "nvfp4_per_token",
}


def backends(wanted: Version) -> list[str]:
    """The attention backends of a release."""
    return [name for since, names in BACKENDS.items() if valid_in(wanted, since, None) for name in names.split()]


def quantizations(wanted: Version) -> list[str]:
    """The quantisations of a release."""
    return [name for window, names in QUANTIZATIONS.items() if valid_in(wanted, *window) for name in names.split()]


def unlike(name: str, known: list[str]) -> str:
    """The nearest known name as a hint, or nothing."""
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""
