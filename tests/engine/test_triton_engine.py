"""The whole engine on Triton kernels says what the CPU's engine says: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_tokens import LAWS, say

pytest.importorskip("triton")
SCRIPT = Path(__file__).parents[1] / "helpers" / "engine_tokens.py"
LENGTHS = (0, 3)  # of drafts


@pytest.fixture(scope="module")
def said(toy_model: Path) -> dict[str, Any]:
    """By Triton's kernels, for every K: one process for all of them, since most of its time goes into its start."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ran = subprocess.run(
        [sys.executable, SCRIPT, str(toy_model), device, *map(str, LENGTHS)],
        env=os.environ | {"AUGURY_KERNELS": "triton"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return dict(json.loads(ran.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("k", LENGTHS, ids=["plain", "draft_model"])
def test_the_engine_says_the_same_on_triton_kernels(toy_model: Path, said: dict[str, Any], k: int) -> None:
    expected = say(str(toy_model), "cpu", k)
    assert said[str(k)] == expected
    assert len({str(expected[str(law)]) for law in LAWS}) == len(LAWS)  # the laws are different questions
    assert not k or expected["accepted"][0][0] > 0
