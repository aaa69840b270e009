"""A rank that is not the first: meet the others, build this part of the model, carry out what rank 0 tells."""

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

GLANCE = 0.5  # seconds between two looks at whether rank 0 is there


def serve(ranks: Ranks) -> None:
    """Engine after engine, until rank 0 needs no more."""
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
    """What a process of torchrun's does that is not rank 0: follow, then leave."""
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
    os._exit(code)  # torch takes a second to take itself apart


def main() -> None:
    """A process that rank 0 has started: its arguments are where to meet, its rank, their number, its device, and the
    number of rank 0's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; rank 0 decides
    logging.getLogger("augury").setLevel(logging.ERROR)  # rank 0 says the rest
    meeting, (rank, size) = Path(sys.argv[1]), map(int, sys.argv[2:4])
    threading.Thread(target=leave_with, args=(int(sys.argv[5]), meeting), daemon=True).start()
    device, code = torch.device(sys.argv[4]), 0
    try:
        store = dist.FileStore(str(meeting), size)
        Ranks.arrive(store, rank)
        serve(Ranks(store, rank, size, device))
    except RanksLost as lost:
        if lost.__cause__ is not None:  # this rank's own fault; otherwise another has told already
            print(f"augury: {lost}", file=sys.stderr)
        code = 1
    _leave(meeting, code)
