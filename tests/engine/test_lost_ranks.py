"""A rank that dies ends its engine at once and with a clear word; nothing hangs, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slowness import times_slower

from augury import LLM, SamplingParams
from augury.parallel.errors import RanksLost

SOON = 5.0 * times_slower()  # seconds in which the loss of a rank must be told


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
    return [process.pid for process in llm.team.processes.started]


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


def test_a_rank_that_cannot_start_is_named(toy_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augury.engine.team.FOLLOWER", ("-c", "raise SystemExit(3)"))
    with pytest.raises(RanksLost, match=r"rank 1 \(process \d+\) ended with exit code 3"):
        LLM(str(toy_model), device="cpu", tensor_parallel_size=2, max_model_len=64)


def test_torchrun_may_start_the_ranks(toy_model: Path) -> None:
    script = str(Path(__file__).parents[1] / "helpers" / "torchrun_script.py")
    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run = subprocess.run([sys.executable, *ranks, script, str(toy_model)], capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    alone = LLM(str(toy_model), device="cpu", max_model_len=64, max_num_seqs=2)
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=6, ignore_eos=True)
    (answer,) = alone.generate("abcabc", params, use_tqdm=False)
    assert run.stdout == f"{answer.outputs[0].token_ids}\n"  # once: rank 0's


def test_a_rank_leaves_when_rank_0_is_killed_at_any_time(toy_model: Path) -> None:
    """Also while it still waits for the others: nothing but the number of its parent tells it then."""
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1], *sys.argv[2:]]).wait()"
    follower = (
        "import os, pathlib, sys; leader = os.getppid(); from augury.engine import follower; "
        "print(os.getpid(), flush=True); follower.leave_with(leader, pathlib.Path(sys.argv[1]) / 'meeting')"
    )
    leader = subprocess.Popen(
        [sys.executable, "-c", code, follower, str(toy_model / "nowhere")], stdout=subprocess.PIPE, text=True
    )
    assert leader.stdout is not None
    assert int(leader.stdout.readline()) > 0
    leader.kill()
    leader.wait()
    assert leader.stdout.read() == ""  # the end of the pipe: the follower has left it, too
