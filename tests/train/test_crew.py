"""Two processes that train together have the curve of one that takes both parts of every step, also after a kill."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import crew_program
import pytest

from augury import LLM
from augury.train.corpus import answer
from augury.train.crew import Crew
from augury.train.loop import Schedule

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
PROMPTS = [[65 + i % 26, 97 + i % 13, 65 + i % 7, 99] for i in range(16)]
TOGETHER = Schedule(steps=6, batch=8, longest=24, every=3, rate=3e-3)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_two_are_one(toy_model: Path, tmp_path: Path) -> None:
    corpus = answer(LLM(str(toy_model), device="cpu", max_model_len=64), PROMPTS, 24)
    corpus.save(tmp_path / "corpus.safetensors")
    words = [str(toy_model), str(tmp_path / "corpus.safetensors"), str(tmp_path), json.dumps(asdict(TOGETHER))]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    program = [sys.executable, crew_program.__file__, *words]
    started = [subprocess.Popen(program, env={**os.environ, **world, "RANK": str(rank)}) for rank in range(2)]
    assert [one.wait(timeout=600) for one in started] == [0, 0]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second and [line["step"] for line in first] == [3, 6]
    alone = crew_program.run_of(toy_model, tmp_path / "alone", replace(TOGETHER, accumulate=2), Crew())
    for mine, theirs in zip(alone.train(corpus, {"a": corpus}).history, first, strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-4)
        assert theirs["length"]["a"] == pytest.approx(mine["length"]["a"], rel=0.02)


def test_parts_are_shared_out() -> None:
    parts = [[0, 1], [2, 3], [4]]
    assert [Crew(rank, 2).mine(parts) for rank in range(2)] == [[[0, 1], [4]], [[2, 3]]]
    assert Crew().mine(parts) == parts and Crew().tell(lambda: 3) == 3
