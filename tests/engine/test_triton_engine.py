"""The whole engine on Triton kernels says what the CPU's engine says: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_tokens import LAWS, say

pytest.importorskip("triton")
SCRIPT = Path(__file__).parents[1] / "helpers" / "engine_tokens.py"


@pytest.mark.slow
@pytest.mark.parametrize("k", [0, 3], ids=["plain", "draft_model"])
def test_the_engine_says_the_same_on_triton_kernels(toy_model: Path, k: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ran = subprocess.run(
        [sys.executable, SCRIPT, str(toy_model), device, str(k)], env=os.environ | {"AUGURY_KERNELS": "triton"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    expected = say(str(toy_model), "cpu", k)
    assert json.loads(ran.stdout) == expected
    assert len({str(expected[str(law)]) for law in LAWS}) == len(LAWS)  # the laws are different questions
    assert not k or expected["accepted"][0][0] > 0
