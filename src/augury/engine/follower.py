"""A rank other than 0: meet the others, build this rank's part of the model, carry out rank 0's orders."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from augury.config.engine import EngineConfig
from augury.config.facts import read_facts
from augury.engine.build import build_runner
from augury.engine.follow import RankFollower
from augury.engine.team import BUILD, END, device_of
from augury.parallel.errors import RanksLost
from augury.parallel.ranks import Ranks

GLANCE = 0.5  # seconds between two checks that rank 0's process is alive


def serve(ranks: Ranks) -> None:
    """Serve one engine after another, until rank 0 needs no more."""
    while (message := ranks.hear())[0] != END:
        if message[0] != BUILD:  # it was for an engine that is closed already
            continue
        _, arguments, directory = message
        with ranks.together():
            config = EngineConfig.parse(**arguments)
            config.check_speculation(read_facts(directory))
            runner = build_runner(config, Path(directory), None, ranks).runner
        RankFollower(runner, ranks).run()


def launched(config: EngineConfig) -> None:
    """Run one of torchrun's processes other than rank 0's: follow rank 0, then exit."""
    rank, size = int(os.environ["RANK"]), config.tensor_parallel_size
    store, *_ = next(dist.rendezvous("env://"))
    place = int(os.environ.get("LOCAL_RANK", rank))
    serve(Ranks(store, rank, size, device_of(config.device, place), loopback=False))
    sys.exit(0)


def leave_with(leader: int, meeting: Path) -> None:
    """End this process when rank 0's has ended, whatever it waits for."""
    while os.getppid() == leader:
        time.sleep(GLANCE)
    _leave(meeting, 1)


def _leave(meeting: Path, code: int) -> None:
    shutil.rmtree(meeting.parent, ignore_errors=True)
    sys.stderr.flush()
    os._exit(code)  # a regular exit takes a second in torch


def main() -> None:
    """Run a process that rank 0 has started: its arguments are the file to meet at, its rank, the number of ranks, its
    device, and the id of rank 0's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; rank 0 decides
    logging.getLogger("augury").setLevel(logging.ERROR)  # rank 0 logs the rest
    meeting, (rank, size) = Path(sys.argv[1]), map(int, sys.argv[2:4])
    threading.Thread(target=leave_with, args=(int(sys.argv[5]), meeting), daemon=True).start()
    device, code = torch.device(sys.argv[4]), 0
    try:
        store = dist.FileStore(str(meeting), size)
        Ranks.arrive(store, rank)
        serve(Ranks(store, rank, size, device))
    except RanksLost as lost:
        if lost.__cause__ is not None:  # this rank has failed; otherwise another one has reported it already
            print(f"augury: {lost}", file=sys.stderr)
        code = 1
    _leave(meeting, code)
