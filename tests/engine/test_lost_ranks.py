"""A rank that dies ends its engine at once and with a clear word; nothing hangs, nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from augury import LLM, SamplingParams
from augury.parallel.errors import RanksLost

SOON = 5.0  # seconds in which an engine must say so


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def llm(toy_model: Path) -> Iterator[LLM]:
    engine = LLM(str(toy_model), device="cpu", tensor_parallel_size=2, max_model_len=64, max_num_seqs=2)
    yield engine
    engine.close()


def followers(llm: LLM) -> list[int]:
    assert llm.team is not None
    return [process.pid for process in llm.team._processes.started]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_killed_rank_ends_the_engine_in_the_midst_of_an_answer(llm: LLM) -> None:
    stream = llm.stream("abc", SamplingParams(max_tokens=40, ignore_eos=True))
    next(stream)
    (pid,) = followers(llm)
    os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(RanksLost, match=rf"rank 1 \(process {pid}\) was ended by signal 9: tensor_parallel_size=2"):
        list(stream)
    assert time.monotonic() - begun < SOON
    with pytest.raises(RanksLost, match="signal 9"):  # and again, for whoever asks next
        llm.generate("abc", SamplingParams(max_tokens=2), use_tqdm=False)


def test_ranks_leave_with_their_engine(toy_model: Path) -> None:
    llm = LLM(str(toy_model), device="cpu", tensor_parallel_size=2, max_model_len=64, max_num_seqs=2)
    (pid,) = followers(llm)
    llm.close()
    llm.close()  # once more does no harm
    assert gone(pid)
