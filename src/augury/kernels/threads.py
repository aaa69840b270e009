"""Settings for the threads and the compiled code of the CPU kernels, in one place.

torch and numba must share one OpenMP pool: two pools of N threads on N cores compete for every core. numba's `omp`
layer binds to the OpenMP that is already in the process, so torch is imported first.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

ARM_SPINS, X86_SPINS = 20_000, 2_000  # looks at a flag; x86 cores pause 10 to 50 nanoseconds between two
_spinning = False  # torch was imported before we could set how its idle threads wait


def waiting() -> dict[str, str]:
    """Environment variables that make idle OpenMP threads spin for 30 to 100 microseconds before they sleep.

    A pass of a small model has dozens of parallel loops; a thread that sleeps between two of them wakes up too late
    for the next. A pass of one row takes 11.0 ms instead of 14.6 on a quiet ARM core and 10.4 instead of 11.6
    on x86; with busy processes 32 instead of 25 and 19 instead of 23, where it takes seconds if threads spin forever.
    """
    spins = {"aarch64": ARM_SPINS, "arm64": ARM_SPINS, "x86_64": X86_SPINS, "amd64": X86_SPINS}
    count = spins.get(platform.machine().lower())
    return {"OMP_WAIT_POLICY": "passive"} | ({"GOMP_SPINCOUNT": str(count)} if count else {})


def wait_quietly() -> None:
    """Let idle OpenMP threads sleep after a while, unless the user has set how; call before torch is imported."""
    global _spinning
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        _spinning = "torch" in sys.modules
        os.environ.update(waiting())


def cache_directory() -> Path:
    """Where compiled kernels may be kept: AUGURY_CACHE, else the user's cache directory, else a temporary one."""
    try:
        user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "augury"
        directory = Path(os.environ.get("AUGURY_CACHE") or user) / "numba"
        directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK):
            return directory
    except (OSError, RuntimeError):  # no home at all is a RuntimeError
        pass
    return Path(tempfile.mkdtemp(prefix="augury-numba-"))


def keep_compiled_code() -> None:
    """Have numba keep code with the sources, or elsewhere if they are read-only; call before kernels are declared."""
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    kernels = Path(__file__).resolve().parent
    if os.access(kernels, os.W_OK):
        forget_old_code(kernels)
        return
    os.environ["NUMBA_CACHE_DIR"] = str(cache_directory())
    if "numba" in sys.modules:
        sys.modules["numba"].config.reload_config()


def compiled_code_at() -> Path:
    """Where numba keeps the kernels' code."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    return Path(chosen) if chosen else Path(__file__).resolve().parent / "__pycache__"


def forget_old_code(kernels: Path) -> None:
    """Remove code that was compiled from other sources: numba checks a kernel's own file, not what it imports."""
    digest, caches = hashlib.sha256(), kernels / "__pycache__"
    for source in sorted(kernels.glob("*.py")):
        if source.stem.endswith("_triton"):  # a GPU's
            continue
        digest.update(source.name.encode() + source.read_bytes())
    stamp = caches / "kernels.sha256"
    with suppress(OSError):  # another process may be at the same
        if stamp.is_file() and stamp.read_text() == digest.hexdigest():
            return
        for old in caches.glob("*.nbi"):
            old.unlink(missing_ok=True)
        caches.mkdir(exist_ok=True)
        stamp.write_text(digest.hexdigest())


@cache
def share_pool() -> int:
    """Make numba use torch's OpenMP pool and its number of threads (OMP_NUM_THREADS); returns that number."""
    import numba as numba_module
    import torch

    numba: Any = numba_module
    wanted, settings = torch.get_num_threads(), numba.config
    if "NUMBA_THREADING_LAYER" not in os.environ and _has_openmp():
        settings.THREADING_LAYER = "omp"
    threads = max(1, min(wanted, settings.NUMBA_NUM_THREADS))
    numba.set_num_threads(threads)
    torch.set_num_threads(wanted)  # starting numba's layer resets the shared pool to all cores
    if _spinning and threads > 1:
        _crowd()
    return threads


def in_shares(count: int, several: bool, run: Callable[..., None], *given: Any) -> None:
    """run(first, last, *given) over `count` lines, on several threads if asked; `run` must release the GIL.

    For lines that take at least a tenth of a millisecond. A parallel loop of numba starts sooner, but is compiled three
    times over: its callees once for signed and once for unsigned counters, and itself once more for one thread.
    """
    threads = min(share_pool(), count) if several else 1
    edges = [count * share // threads for share in range(threads + 1)] if threads > 1 else [0, count]
    others = [_line_threads().submit(run, *edge, *given) for edge in pairwise(edges[1:])]
    run(edges[0], edges[1], *given)
    for other in others:
        other.result()


@cache
def _line_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, share_pool() - 1), "augury-lines")


def _crowd() -> None:
    """Quieten a pool that has begun to spin: libgomp spins briefly once it has more threads than there are cores.

    A second pool, of a thread that sleeps forever, makes it so: 1,500 tokens of a prompt take half the time next to
    one busy process, and as long as before on a quiet machine.
    """
    import torch

    opened = threading.Event()

    def sleep() -> None:
        torch.ones(1 << 20).sum()  # large enough for torch to open a pool here
        opened.set()
        threading.Event().wait()

    threading.Thread(target=sleep, name="augury-quiet", daemon=True).start()
    opened.wait()


def _has_openmp() -> bool:
    """numba's OpenMP layer needs the system's libgomp, which a slim image may lack."""
    try:
        import numba.np.ufunc.omppool  # noqa: F401
    except ImportError:
        return False
    return True
