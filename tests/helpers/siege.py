"""A siege on loopback: `python tests/helpers/siege.py --requests 20000 --minutes 30 [--json] [--only NAME]`.

Eight canary clients ask what they have been answered alone, over and over, while another process runs every attack of
siege_attacks.py and sends mutated requests. What counts: engine restarts, wrong answers, how much longer the canaries
wait, memory, and what each attack was answered. Exit code 0 if the server held, 1 if it did not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

import httpx
from served import Served, served
from siege_attacks import ATTACKS, JSON, Target, client
from siege_fuzz import mutated

KEYS = ("siege-attacker", "siege-neighbour")
CANARIES = 8
DEATH = "the engine process ended"  # as the server's log says it
CALM = 8.0  # seconds the canaries are watched before the siege
FUZZERS = 8  # mutated requests at once
ADDED, GROWTH = 0.5, 256 << 20  # what may be added to a canary's wait, in seconds, and to the memory, in bytes
SUFFIX = {"method": "suffix", "num_speculative_tokens": 8}


@dataclass
class Watch:
    """What the canaries have seen: (when, how long they waited) for every event, and what was wrong."""

    waits: list[tuple[float, float]] = field(default_factory=list)
    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)

    def p99(self, begin: float, end: float) -> float:
        """The wait that one event in a hundred exceeds, of those in a stretch of time."""
        waits = sorted(wait for when, wait in self.waits if begin <= when <= end)
        return waits[int(0.99 * (len(waits) - 1))] if waits else 0.0

    def longest(self, begin: float, end: float) -> float:
        """The longest wait in a stretch of time, as much of it as lies there: a stall is told of when it ends."""
        parts = (min(when, end) - max(when - wait, begin) for when, wait in self.waits if when >= begin)
        return max(parts, default=0.0)


def canary_body(number: int, turn: int) -> dict[str, Any]:
    """What a canary asks: greedy, sampled and structured in turn."""
    body = {
        "prompt": f"canary {number} sings {turn}", "max_tokens": 48, "seed": number, "ignore_eos": True, "stream": True,
        "temperature": 0.0 if turn == 0 else 0.9,
    }  # fmt: skip
    return {**body, "structured_outputs": {"regex": "[a-z ]{40,60}"}, "ignore_eos": False} if turn == 2 else body


def ask(server: Served, body: dict[str, Any], watch: Watch | None = None) -> str | int:
    """A streamed answer's text, or the status it was refused with; every wait is noted."""
    headers = {"authorization": f"Bearer {KEYS[1]}"}
    text, before = "", time.monotonic()
    with client.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers, timeout=600) as answer:
        if answer.status_code != 200:
            return answer.status_code
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            now = time.monotonic()
            if watch is not None:
                watch.waits.append((now, now - before))
            before, event = now, json.loads(line.removeprefix("data: "))
            if "error" in event:
                return f"error: {event['error']['message']}"
            text += event["choices"][0]["text"]
    return text


def sing(server: Served, number: int, alone: list[str | int], watch: Watch, over: threading.Event) -> None:
    """One canary: ask, compare, again."""
    turn = 0
    while not over.is_set():
        turn = (turn + 1) % len(alone)
        try:
            said = ask(server, canary_body(number, turn), watch)
        except httpx.HTTPError as error:
            said = f"error: {type(error).__name__}"
        watch.answers += 1
        if isinstance(said, int):
            watch.refused[said] += 1
            over.wait(0.5)
        elif said != alone[turn]:
            watch.wrong.append(f"canary {number}, turn {turn}: {said[:60]!r} instead of {alone[turn]!r:.60}")


# --- the attackers, in a process of their own -----------------------------------------------------------------------


def besiege(target: Target, names: list[str], requests: int, deadline: float, seed: int, told: Any) -> None:
    """Every attack, one after another, then mutated requests; what came of each goes to a queue."""
    for attack in ATTACKS:
        if names and attack.name not in names:
            continue
        if time.monotonic() > deadline:
            told.put({"name": attack.name, "item": attack.item, "skipped": True})
            continue
        await_calm(target)
        begun = time.monotonic()
        try:
            seen = attack.run(target)
            statuses, fell = dict(seen.statuses), seen.fell
        except Exception as error:
            statuses, fell = {type(error).__name__: 1}, f"{type(error).__name__}: {error}"[:200]
        await_calm(target)
        told.put({
            "name": attack.name, "item": attack.item, "statuses": statuses, "fell": fell, "begun": begun,
            "ended": time.monotonic(),
        })  # fmt: skip
    await_calm(target)
    begun = time.monotonic()
    statuses = fuzz(target, requests, deadline, seed)
    bad = sorted(status for status in statuses if status[:1] == "5" and status != "503")
    told.put({
        "name": "mutated requests", "item": 0, "statuses": dict(statuses), "begun": begun, "ended": time.monotonic(),
        "fell": f"answered {', '.join(bad)}" if bad else "",
    })  # fmt: skip
    told.put(None)


def await_calm(target: Target, seconds: float = 240.0) -> None:
    """Until the engine answers again: what one attack did to it must not be put down to the next."""
    limit = time.monotonic() + seconds
    headers, body = {"authorization": f"Bearer {target.keys[1]}"}, {"prompt": "x", "max_tokens": 1}
    while time.monotonic() < limit:
        with suppress(httpx.HTTPError):
            answer = client.post(f"{target.url}/v1/completions", json=body, headers=headers, timeout=seconds)
            if answer.status_code == 200:
                return
        time.sleep(0.2)


def fuzz(target: Target, requests: int, deadline: float, seed: int) -> Counter[str]:
    """Send mutated requests, a few at a time, until there are enough or time is up."""
    seen: Counter[str] = Counter()
    headers = {"authorization": f"Bearer {target.keys[0]}", "content-type": JSON}

    def send(number: int) -> str | None:
        if time.monotonic() > deadline:
            return None
        body = mutated(random.Random(f"{seed} {number}"))
        try:
            return str(client.post(target.url + body.path, content=body.raw, headers=headers, timeout=120).status_code)
        except httpx.HTTPError as error:
            return type(error).__name__

    with ThreadPoolExecutor(FUZZERS) as pool:
        seen.update(status for status in pool.map(send, range(requests)) if status is not None)
    return seen


# --- the siege --------------------------------------------------------------------------------------------------------


def memory(server: Served) -> int:
    """Bytes in memory, of the server and everything it has started."""
    return sum(_resident(pid) for pid in (server.process.pid, *_below(server.process.pid)))


def _below(pid: int) -> list[int]:
    try:
        kids = [int(kid) for kid in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [one for kid in kids for one in (kid, *_below(kid))]


def _resident(pid: int) -> int:
    """Its proportional share: pages that forked processes have in common count once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):  # it has ended meanwhile
        return 0


def siege(model: Path | str, requests: int, minutes: float, names: list[str], seed: int = 1) -> dict[str, Any]:
    """Run it all; the figures."""
    flags = [word for key in KEYS for word in ("--api-key", key)]
    with served(model, *flags, spec=SUFFIX) as server:
        alone = [[ask(server, canary_body(number, turn)) for turn in range(3)] for number in range(CANARIES)]
        watch, over = Watch(), threading.Event()
        choir = [
            threading.Thread(target=sing, args=(server, number, alone[number], watch, over), daemon=True)
            for number in range(CANARIES)
        ]
        for canary in choir:
            canary.start()
        begun = time.monotonic()
        time.sleep(CALM)
        before, stormed = memory(server), time.monotonic()
        told, peak = attacked(server, requests, stormed + 60 * minutes, names, seed)
        ended = time.monotonic()
        over.set()
        for canary in choir:
            canary.join(600)
        return figures(server, watch, told, (begun, stormed, ended), (before, peak))


def attacked(
    server: Served, requests: int, deadline: float, names: list[str], seed: int
) -> tuple[list[dict[str, Any]], int]:
    """What the attackers tell, and the most memory that the server took meanwhile."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    target = Target(server.port, KEYS)
    process = context.Process(target=besiege, args=(target, names, requests, deadline, seed, queue), daemon=True)
    process.start()
    told: list[dict[str, Any]] = []
    peak = deaths = 0
    while process.is_alive() or not queue.empty():
        peak = max(peak, memory(server))
        try:
            one = queue.get(timeout=0.5)
        except Empty:
            continue
        if one is None:
            break
        died, deaths = server.log.count(DEATH) - deaths, server.log.count(DEATH)
        if died:
            one["fell"] = ", ".join(filter(None, [f"{died} engine restarts", one.get("fell", "")]))
        told.append(one)
        print(f"  {one['name']}: {one.get('statuses', 'skipped')} {one.get('fell', '')}", file=sys.stderr, flush=True)
    process.join(10)
    return told, peak


def figures(
    server: Served, watch: Watch, told: list[dict[str, Any]], times: tuple[float, float, float], used: tuple[int, int]
) -> dict[str, Any]:
    """The report, and whether the server held."""
    begun, stormed, ended = times
    alive = server.process.poll() is None
    calm, storm = watch.p99(begun, stormed), watch.p99(stormed, ended)
    for one in told:
        if "begun" in one:
            span = one.pop("begun"), one.pop("ended")
            longest = watch.longest(*span)
            one |= {"seconds": round(span[1] - span[0], 2), "longest_canary_wait": round(longest, 3)}
            if longest > watch.longest(begun, stormed) + ADDED:
                one["fell"] = ", ".join(filter(None, [one["fell"], f"canaries waited {longest:.1f} s"]))
    if alive:
        server.until_idle(60)
    report: dict[str, Any] = {
        "server_alive": alive,
        "engine_restarts": server.log.count(DEATH),
        "canary_answers": watch.answers, "canary_refused": dict(watch.refused), "wrong_answers": len(watch.wrong),
        "wrong_first": watch.wrong[:5],
        "canary_wait_p99": {"calm": round(calm, 3), "siege": round(storm, 3), "added": round(storm - calm, 3)},
        "canary_wait_longest": round(watch.longest(stormed, ended), 3),
        "memory_bytes": {"before": used[0], "peak": used[1], "after": memory(server) if alive else 0},
        "seconds": round(ended - stormed, 1), "attacks": told,
    }  # fmt: skip
    return {**report, "fell": faults(report)}


def faults(report: dict[str, Any]) -> list[str]:
    """Everything that the server must not have done."""
    grown = report["memory_bytes"]["after"] - report["memory_bytes"]["before"]
    found = {
        "the server has ended": not report["server_alive"],
        f"{report['engine_restarts']} engine restarts": report["engine_restarts"] > 0,
        f"{report['wrong_answers']} wrong answers": report["wrong_answers"] > 0,
        f"canaries wait {report['canary_wait_p99']['added']} s longer": report["canary_wait_p99"]["added"] > ADDED,
        f"memory has grown by {grown >> 20} MB": grown > GROWTH,
    }
    attacks = [f"{one['name']}: {one['fell']}" for one in report["attacks"] if one.get("fell")]
    return [text for text, true in found.items() if true] + attacks


def show(report: dict[str, Any]) -> None:
    """The report for people."""
    waits, used = report["canary_wait_p99"], report["memory_bytes"]
    print(f"engine restarts {report['engine_restarts']}, wrong answers {report['wrong_answers']} of "
          f"{report['canary_answers']}, refused {report['canary_refused']}")  # fmt: skip
    print(f"canary wait p99: {waits['calm']} s in calm, {waits['siege']} s under siege, {waits['added']} s added; "
          f"longest {report['canary_wait_longest']} s")  # fmt: skip
    print("memory: " + ", ".join(f"{name} {value >> 20} MB" for name, value in used.items()))
    for one in report["attacks"]:
        if one.get("skipped"):
            print(f"  {one['item']} {one['name']}: no time left")
            continue
        said = ", ".join(f"{status} x{count}" for status, count in sorted(one["statuses"].items()))
        verdict = f"FELL: {one['fell']}" if one["fell"] else "held"
        print(f"  {one['item']} {one['name']}: {one['seconds']} s, canaries waited up to "
              f"{one['longest_canary_wait']} s, {said}; {verdict}")  # fmt: skip
    print("the server held" if not report["fell"] else "it fell: " + "; ".join(report["fell"]))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="mutated requests")
    parser.add_argument("--minutes", type=float, default=30.0, help="no attack is begun after so long")
    parser.add_argument("--model", default="toy", help="toy, default (the embedded one), or a directory")
    parser.add_argument("--only", action="append", default=[], choices=[attack.name for attack in ATTACKS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as room:
        model: Path | str = given.model
        if given.model == "toy":
            from conftest import save_toy

            model = save_toy(Path(room))
        report = siege(model, given.requests, given.minutes, given.only, given.seed)
    if given.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)
    return 1 if report["fell"] else 0


if __name__ == "__main__":
    sys.exit(main())
