"""What the tests cost, in processor seconds: `make test-cost`, or `pytest -p cost` with this folder in PYTHONPATH.

Wall time on a shared machine says how busy its neighbours are. Counted are the test process and every child that has
ended by then: a server counts where it is stopped, usually in the last test of its file. A child that is killed
together with its parent is not counted.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

FILE = "AUGURY_TEST_COST"  # each worker adds its lines: a test, its processor seconds, the processes it has started
SHOWN = 40
_started = Counter[str]()


def processor_seconds() -> float:
    """Of this process and its ended children."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the file, which the workers of this run inherit; count processes."""
    if not hasattr(config, "workerinput"):
        os.environ.setdefault(FILE, str(Path(tempfile.mkdtemp(prefix="augury-cost-")) / "cost.jsonl"))
    start = subprocess.Popen.__init__

    def counted(self: Any, *words: Any, **options: Any) -> None:
        _started["processes"] += 1
        start(self, *words, **options)

    subprocess.Popen.__init__ = counted  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Set-up, call and tear-down of one test."""
    before, processes = processor_seconds(), _started["processes"]
    outcome = yield
    spent = [item.nodeid, processor_seconds() - before, _started["processes"] - processes]
    with Path(os.environ[FILE]).open("a") as file:
        file.write(json.dumps(spent) + "\n")
    return outcome


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Files first, then single tests, the dearest on top."""
    told = Path(os.environ[FILE])
    lines = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
    files, processes = Counter[str](), Counter[str]()
    for test, seconds, count in lines:
        name = test.partition("::")[0]
        files[name] += seconds
        processes[name] += count
    terminalreporter.section(f"{sum(files.values()):.0f} processor seconds")
    for name, seconds in files.most_common(SHOWN):
        terminalreporter.write_line(f"{seconds:7.1f} s, {processes[name]:3} processes  {name}")
    for test, seconds, _ in sorted(lines, key=lambda line: -line[1])[:SHOWN]:
        terminalreporter.write_line(f"{seconds:7.1f} s  {test}")
    terminalreporter.write_line(f"every test: {told}")
