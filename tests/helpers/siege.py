"""A siege on loopback: `python tests/helpers/siege.py --requests 20000 --minutes 30 [--rounds 2] [--only NAME]`.

Eight canary clients ask what they have been answered alone, over and over, while another process runs every attack of
siege_attacks.py and sends mutated requests. What counts: engine restarts (0), wrong answers (0), what is added to the
canaries' wait (p99, compared with calm in the same run, in each attack and in all), memory (flat), and what each attack
was answered. Single waits are shown beside what others take of the machine. Exit code 0 if the server held, 1 if not.
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
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that the command works from any folder

from conftest import save_toy
from served import Served, served
from siege_attacks import ATTACKS, JSON, Target, client
from siege_fuzz import mutated
from siege_machine import memory
from siege_report import Siege, Watch, figures, show

KEYS = ("siege-attacker", "siege-neighbour")
DEATH = "the engine process ended"  # as the server's log says it
FUZZERS = 8  # mutated requests at once
STAGE = 1000  # mutated requests between two looks at the memory
SUFFIX = {"method": "suffix", "num_speculative_tokens": 8}


def canary_body(number: int, turn: int) -> dict[str, Any]:
    """What a canary asks: greedy, sampled and structured in turn."""
    body = {
        "prompt": f"canary {number} sings {turn}",
        "max_tokens": 48,
        "seed": number,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0.0 if turn == 0 else 0.9,
    }
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


def sing(
    server: Served, number: int, alone: list[str | int], watch: Watch, over: threading.Event, rest: float = 0.0
) -> None:
    """One canary: ask, compare, rest, again."""
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
        over.wait(rest)


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
        told.put(
            {
                "name": attack.name,
                "item": attack.item,
                "statuses": statuses,
                "fell": fell,
                "begun": begun,
                "ended": time.monotonic(),
            }
        )
    await_calm(target)
    begun = time.monotonic()
    statuses = fuzz(target, requests, deadline, seed, told)
    bad = sorted(status for status in statuses if status[:1] == "5" and status != "503")
    told.put(
        {
            "name": "mutated requests",
            "item": 0,
            "statuses": dict(statuses),
            "begun": begun,
            "ended": time.monotonic(),
            "fell": f"answered {', '.join(bad)}" if bad else "",
        }
    )
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


def fuzz(target: Target, requests: int, deadline: float, seed: int, told: Any) -> Counter[str]:
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
        for number, status in enumerate(pool.map(send, range(requests)), 1):
            if status is not None:
                seen[status] += 1
                if number % STAGE == 0:
                    told.put({"sent": number})
    return seen


# --- the siege --------------------------------------------------------------------------------------------------------


class Choir(NamedTuple):
    """How many canaries there are, how long they are watched before the siege, and how long each rests after a song."""

    size: int = 8
    calm: float = 8.0  # seconds
    rest: float = 0.0  # seconds


def siege(
    model: Path | str,
    requests: int,
    minutes: float,
    names: list[str],
    seed: int = 1,
    rounds: int = 1,
    choir: Choir = Choir(),
) -> dict[str, Any]:
    """Run it all, one or several times against the same server; the figures."""
    flags = [word for key in KEYS for word in ("--api-key", key)]
    with served(model, *flags, spec=SUFFIX) as server:
        alone = [[ask(server, canary_body(number, turn)) for turn in range(3)] for number in range(choir.size)]
        seen, over = Siege(), threading.Event()
        canaries = [
            threading.Thread(target=sing, args=(server, i, alone[i], seen.watch, over, choir.rest), daemon=True)
            for i in range(choir.size)
        ]
        for canary in canaries:
            canary.start()
        seen.others.look()
        begun = time.monotonic()
        time.sleep(choir.calm)
        seen.others.look()
        seen.before, stormed = memory(server), time.monotonic()
        for turn in range(rounds):
            attacked(seen, server, requests, time.monotonic() + 60 * minutes, names, seed + turn)
            seen.rounds.append(rested(server) if server.process.poll() is None else {})
        seen.times = begun, stormed, time.monotonic()
        seen.others.look()
        over.set()
        for canary in canaries:
            canary.join(600)
        return figures(seen, server.process.poll() is None, server.log.count(DEATH))


def rested(server: Served) -> dict[str, int]:
    """Memory by process once nothing of the attackers' is left: the least of some looks, the canaries go on."""
    looks = []
    for _ in range(8):
        time.sleep(0.5)
        looks.append(memory(server))
    return min(looks, key=lambda look: sum(look.values()))


def attacked(seen: Siege, server: Served, requests: int, deadline: float, names: list[str], seed: int) -> None:
    """Note what the attackers tell, and what becomes of the memory meanwhile."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    target = Target(server.port, KEYS)
    process = context.Process(target=besiege, args=(target, names, requests, deadline, seed, queue), daemon=True)
    process.start()
    deaths = server.log.count(DEATH)
    while process.is_alive() or not queue.empty():
        seen.others.look()
        now = memory(server)
        seen.peak = max(seen.peak, sum(now.values()))
        try:
            one = queue.get(timeout=0.5)
        except Empty:
            continue
        if one is None:
            break
        if "sent" in one:
            seen.sent.append({"requests": one["sent"], "memory": now})
            continue
        died, deaths = server.log.count(DEATH) - deaths, server.log.count(DEATH)
        if died:
            one["fell"] = ", ".join(filter(None, [f"{died} engine restarts", one.get("fell", "")]))
        seen.told.append(one)
        print(f"  {one['name']}: {one.get('statuses', 'skipped')} {one.get('fell', '')}", file=sys.stderr, flush=True)
    seen.others.look()
    process.join(10)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="mutated requests")
    parser.add_argument("--minutes", type=float, default=30.0, help="no attack is begun after so long")
    parser.add_argument("--model", default="toy", help="toy, default (the embedded one), or a directory")
    parser.add_argument("--only", action="append", default=[], choices=[attack.name for attack in ATTACKS])
    parser.add_argument("--rounds", type=int, default=1, help="sieges of the same server, one after another")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as room:
        model: Path | str = given.model
        if given.model == "toy":
            model = save_toy(Path(room))
        report = siege(model, given.requests, given.minutes, given.only, given.seed, given.rounds)
    if given.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)
    return 1 if report["fell"] else 0


if __name__ == "__main__":
    sys.exit(main())
