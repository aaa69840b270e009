"""Servers of the tests are forks (tests/helpers/forked.py): each is the process that the same command would be."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import forked
import pytest
from served import served

PROGRAM = """
import json, os, sys
said = {"argv": sys.argv, "parent": os.getppid(), "place": os.getcwd(), "torch": "torch" in sys.modules}
said["open"] = [name for name in os.listdir("/proc/self/fd") if int(name) > 2]
print(json.dumps(said | {"given": os.environ.get("GIVEN"), "home": "HOME" in os.environ}))
sys.exit(3)
"""


def told(env: dict[str, str]) -> dict[str, object]:
    done = forked.run([sys.executable, "-c", PROGRAM, "one", "two"], env)
    assert done.returncode == 3 and done.stderr == "", done
    return dict(json.loads(done.stdout))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere they are started in the ordinary way")
def test_a_fork_is_the_process_that_its_command_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = {name: value for name, value in os.environ.items() if name != "HOME"} | {"GIVEN": "this"}
    said = told(env)
    assert said.pop("torch") is True  # its imports are done
    assert len(said.pop("open")) == 1  # type: ignore[arg-type]  # the listing's own
    want = {"argv": ["-c", "one", "two"], "parent": os.getpid(), "place": str(tmp_path), "given": "this", "home": False}
    assert said == want
    other = told(env | {"OMP_NUM_THREADS": "3"})  # read when torch is imported, so this is no fork
    assert other.pop("torch") is False and {name: other[name] for name in want} == want


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere they are started in the ordinary way")
def test_an_engine_is_a_process_of_its_server_and_is_followed_by_another(toy_model: Path) -> None:
    with served(toy_model, spec=None) as server:
        first = server.engine_pid()
        status = Path(f"/proc/{first}/status").read_text()
        assert f"PPid:\t{server.process.pid}\n" in status and os.getsid(first) == first
        os.kill(first, 9)
        while not [pid for pid in server.children() if pid != first]:
            assert server.process.poll() is None
        server.wait()
        assert server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
    assert server.process.returncode == 0 and not Path(f"/proc/{first}").exists()
