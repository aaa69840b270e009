"""The Triton kernels compile for the GPUs we know, without a GPU, and keep to their registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
DRAW = {
    "find_best",
    "find_peaks",
    "join_peaks",
    "narrow",
    "tighten",
    "list_contenders",
    "settle",
    "list_edits",
    "top_of_chunk",
    "top_of_line",
    "weigh",
    "write_probs",
    "find_chances",
    "follow",
    "sum_left",
    "race_left",
    "finish",
    "descend",
    "sum_heights",
    "find_end",
}
LAYERS = {"_attend", "_plan", "_rotate_and_store", "_rms_norm", "_add_rms_norm", "_silu_mul", "_linear", "_unpack"}
MIXTURES = {"_route", "_group", "_product", "_join"}
STEP = {"_lay_out", "_resume", "_walk", "_depths", "_fresh", "_level", "_gather"}
EVERY = DRAW | LAYERS | MIXTURES | STEP
SCRIPT = Path(__file__).parents[1] / "helpers" / "compile_kernels.py"
SPILLED = 192  # bytes a thread: what the branches of edited lines may put aside; plain lines put nothing aside
# Tiles of prompts, most of it on sm_80; those of decoding put nothing aside, or 56 bytes with an 8-bit cache.
SPILLED_BY = {"_attend": 768, "_linear": 448}


def all_asked(request: pytest.FixtureRequest) -> bool:
    """Whether the slow tests run, too: their variants hold the few of the quick one."""
    return any(item.path == Path(__file__) and item.get_closest_marker("slow") for item in request.session.items)


@pytest.fixture(scope="module")
def uses(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each variant of each kernel uses: all of them on the GPU we tune for; the others share the few.

    A variant that breaks the compiler breaks it on all three; what differs is how much a kernel puts aside, and who
    puts much aside does so in most variants. All on all of them:
    `python tests/helpers/compile_kernels.py 80 90 100`.
    """
    runs = [["90"], ["80", "100", "few", "turns"]] if all_asked(request) else [["90", "few"]]
    # Not in pytest's own process: there the interpreter stands in for the compiler.
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found: list[dict[str, Any]] = []
    for words in runs:
        ran = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, env=clean, check=False)
        assert ran.returncode == 0, ran.stderr[-3000:]
        found += json.loads(ran.stdout)
    return found


def compiled(uses: list[dict[str, Any]], architecture: str) -> set[str]:
    """See that no kernel of an architecture spills much, and give their names."""
    found = [use for use in uses if use["architecture"] == int(architecture)]
    assert [use for use in found if use["stack"] > SPILLED_BY.get(use["kernel"], SPILLED)] == []
    return {use["kernel"] for use in found}


def test_kernels_compile_for_a_gpu_that_is_not_there(uses: list[dict[str, Any]]) -> None:
    """Not marked slow, though it takes half a minute: nothing else here sees what only a compiler refuses."""
    assert compiled(uses, "90") >= EVERY - {"list_edits"}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["80", "90", "100"])
def test_every_architecture_compiles_and_spills_little(uses: list[dict[str, Any]], architecture: str) -> None:
    assert compiled(uses, architecture) == EVERY - ({"list_edits"} if architecture != "90" else set())
