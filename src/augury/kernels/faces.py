"""Which face of an operation runs: numba on a CPU, Triton on a GPU, the torch reference on request.

AUGURY_KERNELS=torch runs the readable reference anywhere, to compare with; =triton runs the GPU's kernels, on a CPU
through Triton's interpreter (TRITON_INTERPRET=1), which is how they are tested without a GPU.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Face = Literal["torch", "numba", "triton"]


def face(device: torch.device) -> Face:
    """The face for a device."""
    asked = os.environ.get("AUGURY_KERNELS", "")
    if asked in ("torch", "triton"):
        return "torch" if asked == "torch" else "triton"
    if asked not in ("", "numba"):
        raise ValueError(f"AUGURY_KERNELS={asked!r}: write torch or triton, or leave it out.")
    return "numba" if device.type == "cpu" else "triton" if device.type == "cuda" and _has_triton() else "torch"


@cache
def _has_triton() -> bool:
    """Whether Triton runs here: torch's CUDA build for Linux has it; the kernels call libdevice, which AMD's lacks."""
    import torch

    return find_spec("triton") is not None and torch.version.hip is None
