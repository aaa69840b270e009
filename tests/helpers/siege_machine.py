"""What the siege reads of the machine: memory by process, and what others take of the processors meanwhile."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from served import Served

KINDS = ("server", "engine", "grammars")


def memory(server: Served) -> dict[str, int]:
    """Bytes in memory: of the server, its engine, and the processes that the engine has started for grammars."""
    below = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    engines = [int(pid) for pid in _text(below).split()]
    grammars = [pid for engine in engines for pid in descendants(engine)]
    parts = ([server.process.pid], engines, grammars)
    return {kind: sum(map(_resident, pids)) for kind, pids in zip(KINDS, parts, strict=True)}


def descendants(pid: int) -> list[int]:
    """Every process below one, whichever of its threads has started it."""
    kids: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        kids += map(int, _text(thread).split())
    return [one for kid in kids for one in (kid, *descendants(kid))]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended meanwhile
        return ""


def _resident(pid: int) -> int:
    """Its proportional share: pages that forked processes have in common count once."""
    lines = _text(Path(f"/proc/{pid}/smaps_rollup")).splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


class Ticks(NamedTuple):
    """Processor time since the machine has started, in ticks: all there was, used by anybody, stolen, used by us."""

    total: int
    busy: int
    stolen: int
    ours: int


def ticks() -> Ticks:
    """As of now; `ours` is of this process and all below it, those that have ended included."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, stolen = numbers[3] + numbers[4], numbers[7]
    total = sum(numbers)
    me = os.getpid()
    return Ticks(total, total - idle - stolen, stolen, sum(_used(pid) for pid in (me, *descendants(me))))


def _used(pid: int) -> int:
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


@dataclass
class Others:
    """What the siege does not get of the machine, looked at now and then."""

    looks: list[tuple[float, Ticks]] = field(default_factory=list)

    def look(self) -> None:
        """Take a look."""
        self.looks.append((time.monotonic(), ticks()))

    def share(self, begin: float, end: float) -> dict[str, float]:
        """Parts of all processors in a stretch of time, or in a little more: those of others, and those stolen."""
        before = max((look for look in self.looks if look[0] <= begin), default=None)
        after = min((look for look in self.looks if look[0] >= end), default=None)
        if before is None or after is None or after[1].total == before[1].total:
            return {}
        total, busy, stolen, ours = (b - a for a, b in zip(before[1], after[1], strict=True))
        return {"others": round(max(0, busy - ours) / total, 3), "stolen": round(stolen / total, 3)}
