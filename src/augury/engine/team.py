"""The processes of an engine's ranks: started by rank 0 or by torchrun, watched, and ended with rank 0."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

import augury
from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.engine.mirror import Leader
from augury.engine.parallel_checks import THREADS, check_parallel
from augury.parallel.errors import RanksLost
from augury.parallel.ranks import Ranks

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets for each process
NOTICE = 2.0  # seconds to wait for the end of a rank's process to be noticed after its sockets have closed
GLANCE = 0.01  # seconds between two checks for ranks that have arrived
FAREWELL = 5.0  # seconds that ranks have to end when they are told to
BUILD, END = "build", "end"
Made = TypeVar("Made")
FOLLOWER = ("-P", "-c", "from augury.engine.follower import main; main()")


class Processes:
    """The other ranks' processes; the first that ends unexpectedly is remembered."""

    def __init__(self, started: list[subprocess.Popen[bytes]], size: int, meeting: Path | None = None) -> None:
        self.started, self.size, self._meeting = started, size, meeting
        self.lost: str | None = None
        self.closing = False
        self.noticed = threading.Event()
        self.on_loss: Callable[[], None] | None = None
        for rank, process in enumerate(started, 1):
            threading.Thread(target=self._watch, args=(rank, process), name=f"augury-rank-{rank}", daemon=True).start()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if not self.closing and self.lost is None:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self.lost = f"rank {rank} (process {process.pid}) {how}"
            self.noticed.set()
            if self.on_loss is not None:
                self.on_loss()

    def check(self) -> None:
        """Raise RanksLost if one has ended."""
        if self.lost is not None:
            raise RanksLost(self.explain(""))

    def explain(self, error: str) -> str:
        """Why ranks can no longer reach each other, as a message."""
        if self.started and self.lost is None:
            self.noticed.wait(NOTICE)
        what = self.lost or f"another rank does not answer ({error})"
        return (
            f"{what}: tensor_parallel_size={self.size} cannot continue without it. A server restarts its engine; a "
            "script must create its LLM again."
        )

    def end(self) -> None:
        """End them all; if they were told to, they have FAREWELL seconds to do so."""
        told, self.closing = self.closing, True
        limit = time.monotonic() + (FAREWELL if told else 0)
        for process in self.started:
            try:
                process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._meeting is not None:
            shutil.rmtree(self._meeting, ignore_errors=True)


class Team:
    """All ranks of one engine, as rank 0 sees them."""

    def __init__(self, ranks: Ranks, processes: Processes, store: Any) -> None:
        self.ranks, self.processes = ranks, processes
        self._store = store  # kept alive for the other ranks
        ranks.explain, ranks.check, processes.on_loss = processes.explain, processes.check, ranks.abort
        self._finalizer = weakref.finalize(self, _end, ranks, processes)

    def build(self, config: EngineConfig, directory: Path, make: Callable[[], Made]) -> Made:
        """Have every rank build its part of an engine; this one's by `make`."""
        self.ranks.tell([BUILD, arguments_of(config), str(directory)])
        try:
            with self.ranks.together():
                return make()
        except RanksLost as lost:  # an error of this rank is raised as if it were alone
            raise lost.__cause__ or lost from None

    def close(self) -> None:
        """End the other ranks."""
        self._finalizer()


def _end(ranks: Ranks, processes: Processes) -> None:
    """Tell the other ranks to end, and make sure that they do; runs at exit, too, if `close` was not called."""
    if processes.lost is None:
        processes.closing = True
        try:
            Leader(ranks).close()
            ranks.tell([END])
        except RanksLost:
            processes.closing = False
    processes.end()
    ranks.close()


def assemble(config: EngineConfig) -> Team:
    """Set up rank 0 of an engine: start the others, or meet those that torchrun has started."""
    size, threads = config.tensor_parallel_size, threads_each(config.tensor_parallel_size)
    check_parallel(config)
    device = device_of(config.device, 0)
    if device.type == "cpu":
        torch.set_num_threads(threads)
    if is_launched(size):
        store, rank, _ = next(dist.rendezvous("env://"))
        return Team(Ranks(store, rank, size, device, loopback=False), Processes([], size), store)
    # A file that only this user can read: a store of torch's own would listen on every interface.
    meeting = Path(tempfile.mkdtemp(prefix="augury-ranks-"), "meeting")
    store = dist.FileStore(str(meeting), size)
    started = [_started(config.device, meeting, rank, size, threads) for rank in range(1, size)]
    processes = Processes(started, size, meeting.parent)
    try:
        _wait_for_all(store, processes)
        return Team(Ranks(store, 0, size, device), processes, store)
    except BaseException:
        processes.end()
        raise


def _started(device: str, meeting: Path, rank: int, size: int, threads: int) -> subprocess.Popen[bytes]:
    """Start the process of another rank."""
    path = os.pathsep.join(filter(None, (str(Path(augury.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    words = (str(meeting), str(rank), str(size), str(device_of(device, rank)), str(os.getpid()))
    return subprocess.Popen(
        [sys.executable, *FOLLOWER, *words],
        stdin=subprocess.DEVNULL,
        stdout=2,  # standard output is for rank 0 alone
        env={**os.environ, THREADS: str(threads), "PYTHONPATH": path},
    )


def _wait_for_all(store: Any, processes: Processes) -> None:
    """Wait until all ranks have arrived; raises RanksLost if one ends before that."""
    for rank in range(1, 1 + len(processes.started)):
        while not Ranks.arrived(store, rank):
            if processes.noticed.wait(GLANCE):
                raise RanksLost(f"{processes.lost} before it could load its part of the model; see its output.")


def threads_each(size: int) -> int:
    """Threads of one rank: its share of the cores, or what the environment says."""
    asked = os.environ.get(THREADS, "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return max(1, torch.get_num_threads() // size)


def device_of(name: str, rank: int) -> torch.device:
    """The device of a rank: a GPU each, or the CPU."""
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", rank)


def is_launched(size: int) -> bool:
    """Whether torchrun has started this process as one of `size`."""
    if not all(name in os.environ for name in LAUNCHED):
        return False
    if int(os.environ["WORLD_SIZE"]) != size:
        raise ConfigError(
            f"tensor_parallel_size={size}, but torchrun has started {os.environ['WORLD_SIZE']} processes; write the "
            "same number."
        )
    return True


def arguments_of(config: EngineConfig) -> dict[str, Any]:
    """A configuration as arguments for `EngineConfig.parse` on another rank."""
    told = config.model_dump(mode="json", exclude_defaults=True, exclude={"speculative_config", "kv_transfer_config"})
    spec = config.speculative_config
    return told if spec is None else {**told, "speculative_config": spec.to_dict()}
