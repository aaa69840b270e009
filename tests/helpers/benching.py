"""Help for tests of `augury bench serve`: the command, a scripted server, and prompts that are scripts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from augury.cli import app

STEADY = {"ttft": 0.15, "gap": 0.03, "chunks": 12, "each": 3}  # a script for the server
FAKE = Path(__file__).parent / "fake_openai.py"


def bench(*words: str) -> Any:
    """Run the command."""
    return CliRunner().invoke(app, ["bench", "serve", *words], prog_name="augury")


@contextmanager
def fake(slower: float = 1.0, authorization: str = "") -> Iterator[str]:
    """A server in a process of its own, which may insist on a header."""
    words = [sys.executable, str(FAKE), str(slower), authorization]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


def script_file(place: Path, *scripts: dict[str, Any]) -> str:
    """A data set of scripts."""
    file = place / "scripts.jsonl"
    file.write_text("\n".join(json.dumps(json.dumps(script)) for script in scripts))
    return str(file)
