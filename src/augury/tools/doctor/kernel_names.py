"""Names of attention back ends and of quantisations: which are known, and since when one is gone."""

from __future__ import annotations

import re
from difflib import get_close_matches

# vLLM reads a back end's name without regard to case. The list of a release is longer than what is certain here, so a
# name that is missing is a remark and never an error; whole families are known by a part of their names.
BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "CPU_ATTN", "TREE_ATTN")
BACKEND_FAMILIES = re.compile(r"ROCM_|MLA|^CUSTOM$")
BACKEND_GONE = {"TREE_ATTN": "0.21"}

# Names that people write; which release takes which is not known here.
QUANTIZATIONS = (
    "ascend", "auto-round", "auto_round", "awq", "awq_marlin", "bitblas", "bitsandbytes", "compressed-tensors",
    "experts_int8", "fbgemm_fp8", "fp8", "gguf", "gptq", "gptq_bitblas", "gptq_marlin", "gptq_marlin_24", "hqq",
    "humming", "inc", "ipex", "marlin", "modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "moe_wna16",
    "mxfp4", "mxfp8", "petit_nvfp4", "ptpc_fp8", "quark", "rtn", "torchao", "tpu_int8",
)  # fmt: skip


def backend_spelt(name: str) -> str | None:
    """The back end that a name with dashes or blanks in it means; such a name is none by itself."""
    meant = re.sub(r"[-\s]+", "_", name.strip()).upper()
    return meant if meant != name.upper() and known_backend(meant) else None


def known_backend(name: str) -> bool:
    """Whether a name is one that is known here."""
    upper = name.upper()
    return upper in BACKENDS or (upper.isidentifier() and BACKEND_FAMILIES.search(upper) is not None)


def close_backend(name: str) -> str | None:
    """The known back end that an unknown name is close to."""
    close = get_close_matches(name.upper(), [one for one in BACKENDS if one not in BACKEND_GONE], n=1, cutoff=0.6)
    return close[0] if close else None


def known_quantization(name: str) -> bool:
    """Whether a quantisation's name is one that is known here."""
    return name.lower() in QUANTIZATIONS


def close_quantization(name: str) -> str | None:
    """The known quantisation that an unknown name is close to."""
    close = get_close_matches(name.lower(), QUANTIZATIONS, n=1, cutoff=0.6)
    return close[0] if close else None
