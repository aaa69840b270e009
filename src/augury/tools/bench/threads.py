"""How many threads an engine in this process may use."""

from __future__ import annotations

import os
import sys


def limit_threads(threads: int) -> None:
    """By the environment, which the libraries read when they load; where torch has loaded already, by its own call."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(threads)
        return
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads)))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
