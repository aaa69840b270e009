"""What came of a siege, and whether the server held."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from siege_machine import Others

MB = 1 << 20
ADDED = 0.5  # seconds that may be added to the wait that one event in a hundred exceeds
GROWTH = 256 * MB  # what may be added to the memory in all: caches, tables and kernels of first use (docs/security.md)
FLAT = 32 * MB  # what the second half of the mutated requests, or another siege of the same server, may add to it


@dataclass
class Watch:
    """What the canaries have seen: (when, how long they waited) for every event, and what was wrong."""

    waits: list[tuple[float, float]] = field(default_factory=list)
    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)

    def p99(self, begin: float, end: float) -> float:
        """The wait that one event in a hundred exceeds, of those that were waited for in a stretch of time."""
        waits = sorted(wait for when, wait in self.waits if when >= begin and when - wait <= end)
        return waits[int(0.99 * (len(waits) - 1))] if waits else 0.0

    def longest(self, begin: float, end: float) -> tuple[float, float]:
        """The longest wait in a stretch of time, as much of it as lies there, and when it ended."""
        parts = ((min(when, end) - max(when - wait, begin), min(when, end)) for when, wait in self.waits)
        return max((part for part in parts if part[1] >= begin and part[0] >= 0), default=(0.0, end))


@dataclass
class Siege:
    """Everything that was noted while it went on."""

    watch: Watch = field(default_factory=Watch)
    others: Others = field(default_factory=Others)
    told: list[dict[str, Any]] = field(default_factory=list)  # by the attackers
    times: tuple[float, float, float] = (0.0, 0.0, 0.0)  # when calm, the siege, and the time after it began
    before: dict[str, int] = field(default_factory=dict)  # memory by process
    peak: int = 0
    sent: list[dict[str, Any]] = field(default_factory=list)  # memory after so many mutated requests
    rounds: list[dict[str, int]] = field(default_factory=list)  # and after each siege, when the server is idle


def figures(seen: Siege, alive: bool, restarts: int) -> dict[str, Any]:
    """The report, and whether the server held."""
    watch, (begun, stormed, ended) = seen.watch, seen.times
    calm, storm = watch.p99(begun, stormed), watch.p99(stormed, ended)
    for one in seen.told:
        if "begun" in one:
            one |= waited(seen, one.pop("begun"), one.pop("ended"), calm)
            if one["wait_p99_added"] > ADDED:
                more = f"canaries wait {one['wait_p99_added']} s longer (p99)"
                one["fell"] = ", ".join(filter(None, [one["fell"], more]))
    after = seen.rounds[-1] if seen.rounds else {}
    report: dict[str, Any] = {
        "server_alive": alive,
        "engine_restarts": restarts,
        "canary_answers": watch.answers,
        "canary_refused": dict(watch.refused),
        "wrong_answers": len(watch.wrong),
        "wrong_first": watch.wrong[:5],
        "canary_wait_p99": {"calm": round(calm, 3), "siege": round(storm, 3), "added": round(storm - calm, 3)},
        "canary_wait_longest": {
            "calm": round(watch.longest(begun, stormed)[0], 3),
            "siege": round(watch.longest(stormed, ended)[0], 3),
        },
        "machine": {"calm": seen.others.share(begun, stormed), "siege": seen.others.share(stormed, ended)},
        "memory_bytes": {"before": sum(seen.before.values()), "peak": seen.peak, "after": sum(after.values())},
        "memory_by_process": {"before": seen.before, "sent": seen.sent, "rounds": seen.rounds},
        "memory_added_late": added_late(seen),
        "seconds": round(ended - stormed, 1),
        "attacks": seen.told,
    }
    return {**report, "fell": faults(report)}


def waited(seen: Siege, begin: float, end: float, calm: float) -> dict[str, Any]:
    """How long the canaries waited in a stretch of time; a single wait stands beside what others did meanwhile."""
    longest, when = seen.watch.longest(begin, end)
    p99 = seen.watch.p99(begin, end)
    return {
        "seconds": round(end - begin, 2),
        "wait_p99": round(p99, 3),
        "wait_p99_added": round(max(0.0, p99 - calm), 3),
        "longest_wait": round(longest, 3),
        "machine_then": seen.others.share(when - longest, when),
    }


def added_late(seen: Siege) -> int:
    """What memory was added when everything had been used once: by the last siege of several, or else by the second
    half of the mutated requests, a quarter against a quarter by their medians: requests hold memory while they run."""
    if len(seen.rounds) > 1:
        return sum(seen.rounds[-1].values()) - sum(seen.rounds[-2].values())
    sums = [sum(one["memory"].values()) for one in seen.sent]
    if len(sums) < 4:
        return 0
    quarter = len(sums) // 4
    return int(median(sums[-quarter:]) - median(sums[len(sums) // 2 - quarter : len(sums) // 2]))


def faults(report: dict[str, Any]) -> list[str]:
    """Everything that the server must not have done."""
    grown, late = report["memory_bytes"]["after"] - report["memory_bytes"]["before"], report["memory_added_late"]
    found = {
        "the server has ended": not report["server_alive"],
        f"{report['engine_restarts']} engine restarts": report["engine_restarts"] > 0,
        f"{report['wrong_answers']} wrong answers": report["wrong_answers"] > 0,
        f"canaries wait {report['canary_wait_p99']['added']} s longer": report["canary_wait_p99"]["added"] > ADDED,
        f"memory has grown by {grown // MB} MB": grown > GROWTH,
        f"memory is not flat: {late // MB} MB more": late > FLAT,
    }
    attacks = [f"{one['name']}: {one['fell']}" for one in report["attacks"] if one.get("fell")]
    return [text for text, true in found.items() if true] + attacks


def show(report: dict[str, Any]) -> None:
    """The report for people."""
    waits, longest, used = report["canary_wait_p99"], report["canary_wait_longest"], report["memory_bytes"]
    print(
        f"engine restarts {report['engine_restarts']}, wrong answers {report['wrong_answers']} of "
        f"{report['canary_answers']}, refused {report['canary_refused']}"
    )
    print(
        f"canary wait p99: {waits['calm']} s in calm, {waits['siege']} s under siege, {waits['added']} s added; "
        f"single waits up to {longest['calm']} and {longest['siege']} s; machine {report['machine']}"
    )
    print("memory: " + ", ".join(f"{name} {value // MB} MB" for name, value in used.items()))
    parts = report["memory_by_process"]
    stages = [("before", parts["before"]), *((f"{one['requests']} sent", one["memory"]) for one in parts["sent"])]
    stages += [(f"after siege {i + 1}", one) for i, one in enumerate(parts["rounds"])]
    for stage, kinds in stages:
        print(f"  {stage}: " + ", ".join(f"{kind} {value // MB} MB" for kind, value in kinds.items()))
    print(f"  added late: {report['memory_added_late'] // MB} MB")
    for one in report["attacks"]:
        print(f"  {one['item']} {one['name']}: {_line(one)}")
    print("the server held" if not report["fell"] else "it fell: " + "; ".join(report["fell"]))


def _line(one: dict[str, Any]) -> str:
    if one.get("skipped"):
        return "no time left"
    said = ", ".join(f"{status} x{count}" for status, count in sorted(one["statuses"].items()))
    verdict = f"FELL: {one['fell']}" if one["fell"] else "held"
    waits = f"canaries wait p99 {one['wait_p99']} s, {one['wait_p99_added']} s added, once {one['longest_wait']} s"
    return f"{one['seconds']} s, {waits} {one['machine_then']}, {said}; {verdict}"
