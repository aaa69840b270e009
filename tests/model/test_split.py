"""Every family of the dense decoder, divided among ranks: gathered results are a single rank's bits, sums are near."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from dense_cases import FAMILIES, save_random
from served import free_port

PROGRAM = str(Path(__file__).parents[1] / "helpers" / "rank_program.py")
NAMES = ("llama", "llama-biased-tied", "mistral", "qwen2", "qwen3", "llama-partial")


def test_families_divided_in_two(tmp_path: Path) -> None:
    directories = []
    for name in NAMES:
        save_random(FAMILIES[name], tmp_path / name)
        directories.append(str(tmp_path / name))
    port, environment = str(free_port()), {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, port, str(rank), "2", *directories], env=environment, stdout=subprocess.PIPE
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    errors = json.loads(said[0])
    assert set(errors) == set(NAMES) and {gathered for gathered, _ in errors.values()} == {0.0}
    assert all(0.0 < summed < 1e-4 for _, summed in errors.values())
