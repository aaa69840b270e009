"""Commands run in this process, or in a child with limits on time and memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

from typer.testing import CliRunner

from augury.cli import app

# a command with something to say about it
SPEC = """vllm serve m -sc '{"method": "ngram", "num_speculative_tokens": 4, "disable_by_batch_size": 16}'\n"""


def run(*words: str, stdin: bytes | None = None) -> tuple[int, str]:
    """A command in this process: exit code and all it says."""
    done = CliRunner().invoke(app, list(words), input=stdin)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def bounded(*words: str, seconds: int = 60, megabytes: int = 2500) -> subprocess.CompletedProcess[bytes]:
    """A command in a child that may take so much processor time and memory; a larger need ends it by signal."""

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    command = [sys.executable, "-c", "from augury.cli import main; main()", *words]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, preexec_fn=limits, timeout=600, env=env)


def one_error(done: subprocess.CompletedProcess[bytes], *words: str) -> None:
    lines = done.stderr.decode().splitlines(keepends=True)
    said = "".join(line for line in lines if " so far" not in line)  # a slow machine says how far it is
    assert done.returncode == 2 and said.startswith("error: ") and said.count("\n") == 1, (done.returncode, said[-500:])
    assert all(word in said for word in words), said
