"""The draw's Triton kernels compile for the GPUs we know, without a GPU, and keep to their registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
SCRIPT = Path(__file__).with_name("compile_kernels.py")
SPILLED = 192  # bytes a thread: what the branches of edited lines may put aside; plain lines put nothing aside


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["80", "90", "100"])
def test_every_kernel_compiles_and_spills_next_to_nothing(architecture: str) -> None:
    # Not as a test of pytest's own process: there the interpreter stands in for the compiler.
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run([sys.executable, SCRIPT, architecture], capture_output=True, text=True, env=clean, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout)
    assert len(found) == 15
    assert [kernel for kernel in found if kernel["stack"] > SPILLED] == []
