"""The CPU kernels' threads, memory and stored code."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from rows import Segment, make_rows

from augury.kernels import choose, faces, numba_ops
from augury.kernels.faces import face
from augury.kernels.threads import forget_old_code, in_shares

NUMBA = choose(torch.device("cpu"))


@pytest.fixture(autouse=True)
def many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thread everything, so that small shapes cover the threaded code."""
    monkeypatch.setattr(numba_ops, "PARALLEL_SIGHT", 0)
    monkeypatch.setattr(numba_ops, "PARALLEL_WEIGHT", 0)


def test_an_unknown_face_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUGURY_KERNELS", "Torch")
    monkeypatch.setattr(faces, "asked", faces.asked.__wrapped__)
    with pytest.raises(ValueError, match="AUGURY_KERNELS='Torch' is unknown: write torch or triton"):
        face(torch.device("cpu"))


def test_torch_keeps_its_number_of_threads() -> None:
    """numba's OpenMP layer resets the pool that it shares with torch."""
    script = """
import torch
from augury.kernels import choose
ops = choose(torch.device("cpu"))
ops.linear(torch.randn(2, 512), torch.randn(512, 512))
print(torch.get_num_threads(), ops._threads)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)
    assert done.stdout.split() == [b"1", b"1"], done.stderr


def test_activations_and_caches_are_freed() -> None:
    """numpy arrays take no part in cycle collection, so a tensor and its array must not hold each other."""
    x = torch.randn(8, 64)
    for rows in (1, 8):
        results = [NUMBA.linear(x[:rows], torch.randn(64, 64)), NUMBA.rms_norm(x[:rows], torch.randn(64), 1e-5)]
        watch = [weakref.ref(tensor) for tensor in results]
        del results
        gc.collect()
        assert [ref() for ref in watch] == [None, None]
    cache = torch.zeros(16, 2, 16)
    NUMBA.store(
        torch.ones(1, 2, 16),
        torch.ones(1, 2, 16),
        NUMBA.view(make_rows([Segment(0, 0, [1])], torch.tensor([[1]]))),
        cache,
        cache,
    )
    watch = [weakref.ref(cache)]
    del cache
    assert watch[0]() is None


SPINNING = """
import os, sys, time
for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
    os.environ.pop(name, None)
import torch
torch.set_num_threads(int(sys.argv[2]))
x = torch.ones(1 << 20)
if sys.argv[1] == "augury":
    import augury
    from augury.kernels import threads
    threads.share_pool()
x.sum()
begun = time.process_time()
for _ in range(100):
    x.sum()
    time.sleep(0.003)
print(time.process_time() - begun)
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2 or sys.platform != "linux", reason="one core, or no libgomp")
def test_threads_stop_spinning_though_torch_came_first() -> None:
    """Processor time of threads that wait between short parallel regions."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    spent = []
    for who in ("torch", "augury"):
        command = [sys.executable, "-c", SPINNING, who, str(os.cpu_count())]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        spent.append(float(done.stdout))
    assert spent[1] < spent[0] / 2, spent


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_shares_are_the_whole(threads: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augury.kernels.threads.share_pool", lambda: threads)
    for several in (False, True):
        seen: list[tuple[int, str]] = []
        in_shares(count, several, lambda a, b, word: seen.extend((i, word) for i in range(a, b)), "word")  # noqa: B023
        assert sorted(seen) == [(i, "word") for i in range(count)]


def test_a_share_that_fails_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augury.kernels.threads.share_pool", lambda: 2)
    with pytest.raises(ZeroDivisionError):
        in_shares(2, True, lambda first, _last: None if first == 0 else print(1 // 0))


def test_code_compiled_from_other_sources_is_forgotten(tmp_path: Path) -> None:
    caches = tmp_path / "__pycache__"
    source, index = tmp_path / "simd.py", caches / "kernel-1.py311.nbi"
    source.write_text("one")
    forget_old_code(tmp_path)
    index.write_text("compiled")
    forget_old_code(tmp_path)
    assert index.exists()
    source.write_text("two")
    forget_old_code(tmp_path)
    assert not index.exists()
