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
    if (chosen := asked()) is not None:
        return chosen
    return "numba" if device.type == "cpu" else "triton" if device.type == "cuda" and _has_triton() else "torch"


@cache
def asked() -> Face | None:
    """The face that AUGURY_KERNELS asks for, None for the default; read once, because a pass asks thirty times."""
    match os.environ.get("AUGURY_KERNELS", ""):
        case "torch" | "triton" as name:
            return name
        case "" | "numba":
            return None
        case other:
            raise ValueError(
                f"AUGURY_KERNELS={other!r} is unknown: write torch or triton, or unset it for the default."
            )


@cache
def _has_triton() -> bool:
    """Whether Triton runs here: torch's CUDA build for Linux has it; the kernels call libdevice, which AMD's lacks."""
    import torch

    return find_spec("triton") is not None and torch.version.hip is None
