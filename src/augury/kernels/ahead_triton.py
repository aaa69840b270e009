"""Kernels that start before the one before them has ended (programmatic dependent launch: Hopper and later).

Between two kernels of a graph a GPU is idle for a microsecond or two, and a decode pass has hundreds of kernels. A
kernel that is launched ahead has its programs in place while its predecessor's last ones run; it reads what others
have written, and writes, only after it has waited for that predecessor to end.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

HOPPER = (9, 0)
MOST_ROWS = 64  # larger passes are bound by arithmetic, and their matrices are cuBLAS's, which is not launched ahead


def launched_ahead(x: Tensor) -> dict[str, Any]:
    """Launch options of a kernel for these rows: launched ahead where that helps."""
    ahead = len(x) <= MOST_ROWS and can_launch_ahead(x.device)
    return {"AHEAD": ahead, "launch_pdl": ahead}


@cache
def can_launch_ahead(device: torch.device) -> bool:
    """Whether the GPU supports dependent launches."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= HOPPER


@triton.jit
def await_inputs(AHEAD: tl.constexpr):
    """Let the next kernel's programs start, then wait for the kernel before this one; every program must call this.

    The order of the two is safe: the next kernel waits for this one's end, which comes after its predecessor's.
    """
    if AHEAD:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
