"""Clients that the tests do not install, by hand: `python tests/helpers/run_clients.py --packages DIR --npm NPM`.

Each runs the task of agent_clients.py against one server: whole and streamed, with speculation and without. What it
saw must be the same all four times. DIR is made by `pip install --target DIR langchain-openai litellm openai-agents
smolagents 'pydantic-ai-slim[openai]'`, NPM by `npm install openai`; one that is missing is said to be.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import agent_clients as clients
import agent_frameworks as frameworks
from served import NGRAM, Served, served

WAYS: tuple[dict[str, Any], ...] = ({"enabled": False}, {"num_speculative_tokens": 4})
RUNS: dict[str, tuple[str, Callable[[clients.Way], None]]] = {
    "openai": ("openai", clients.with_openai),
    "langchain bind_tools": ("langchain-openai", clients.with_langchain),
    "litellm": ("litellm", clients.with_litellm),
    "openai-agents": ("openai-agents", frameworks.with_openai_agents),
    "smolagents": ("smolagents", frameworks.with_smolagents),
    "pydantic-ai": ("pydantic-ai-slim", frameworks.with_pydantic_ai),
}


def one(name: str, run: Callable[[clients.Way], None], server: Served, model: str) -> bool:
    """All four ways of one client; whether they were the same."""
    seen, begun = [], time.monotonic()
    before = server.metrics()
    for speculative in WAYS:
        for stream in (False, True):
            way = clients.Way(server.url, model, speculative, stream)
            try:
                run(way)
            except Exception:
                print(f"{name}: failed (speculative={speculative}, stream={stream})\n{traceback.format_exc()}")
                return False
            seen.append(way.events)
    after = server.metrics()
    drafted, accepted = (
        int(after[key] - before[key])
        for key in (f"vllm:spec_decode_num_{what}_tokens_total" for what in ("draft", "accepted"))
    )
    same = all(events == seen[0] for events in seen)
    tools = {event[1] for event in seen[0] if event[0] == "call"} == set(clients.SCHEMAS)
    verdict = "the same four times" if same else f"DIFFERENT: {seen}"
    print(
        f"{name}: {verdict}; both tools: {tools}; {accepted} of {drafted} drafted tokens accepted; "
        f"{time.monotonic() - begun:.0f} s; {seen[0]}",
        flush=True,
    )
    return same and tools


def main() -> int:
    """Run every client there is; 1 if one of them saw a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, help="where packages beside the tests' own are")
    parser.add_argument("--npm", type=Path, help="where node_modules/openai is")
    parser.add_argument("--model", default="default")
    parser.add_argument("--only", help="one client's name")
    given = parser.parse_args()
    if given.packages:
        sys.path.insert(0, str(given.packages))  # first: their openai may be another release than the tests'
    runs = {f"{name}": (package, run) for name, (package, run) in RUNS.items()}
    if given.npm:
        runs["npm openai"] = ("", partial(clients.with_npm, folder=given.npm))
    good = True
    with served(given.model, "--served-model-name", "model", spec=NGRAM, fresh=True) as server:
        for name, (package, run) in runs.items():
            if given.only not in (None, name):
                continue
            try:
                release = version(package) if package else ""
            except PackageNotFoundError:
                print(f"{name}: {package} is not installed")
                continue
            good &= one(f"{name} {release}".strip(), run, server, "model")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
