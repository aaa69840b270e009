"""Follow README and docs as a reader would: every block that followed.yml says can be run, in an empty directory.

`python tests/helpers/follow_pages.py [PART OF A PAGE'S NAME]`; exit code 1 if a block does not show what it promises.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from page_blocks import ROOT, Followed, blocks, followed, plan
from served import free_port

ACCEPTED = (
    re.compile(r"(\d+)% of \d+ drafted tokens accepted"),  # `augury generate` on a terminal
    re.compile(r'"acceptance_rate": ([\d.]+)'),  # and as JSON
    re.compile(r"(\d\.\d+)$", re.M),  # the README's script prints it last
)
START = 300.0  # seconds for a server to start, kernels compiled


def prepare(room: Path, names: list[str]) -> None:
    """Write the files that stand in for the reader's own; one that names a page is that page's first Python block."""
    for name in names:
        text = plan()["files"][name]
        if text.endswith(".md"):
            text = next(block.text for block in blocks(ROOT / text) if block.language == "python")
        (room / name).write_text(text)


def environment(room: Path) -> dict[str, str]:
    """A shell in which `augury` and `python` are those that run this."""
    shims = room / ".bin"
    shims.mkdir(exist_ok=True)
    for name, words in (("augury", "-m augury"), ("python", "")):
        (shims / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (shims / name).chmod(0o755)
    source = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PATH": f"{shims}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": source, "TERM": "dumb"}


def bare(command: str) -> str:
    """A command without the remark behind it."""
    return re.sub(r"\s\s+#.*$", "", command)


def follow(entry: Followed, room: Path) -> str:
    """Run a block's commands; gives what they printed, or raises an AssertionError that says what went wrong."""
    prepare(room, entry.files)
    env, printed = environment(room), ""
    if entry.block.language == "python":
        commands = ["python block.py"]
        (room / "block.py").write_text(entry.block.text)
    else:
        commands = entry.block.commands[: entry.only]
    for number, command in enumerate(commands):
        if command.startswith("augury serve"):
            printed += serve(command, room, env)
            continue
        command = command.replace("PYTHONPATH=.", f'PYTHONPATH=.{os.pathsep}"$PYTHONPATH"')
        measured = entry.accepts is not None and " generate " in command
        line = bare(command) + (" --json" if measured else "")
        done = subprocess.run(["bash", "-c", line], cwd=room, env=env, capture_output=True, text=True, check=False)
        printed += done.stdout + done.stderr
        wanted = entry.code if number == len(commands) - 1 else 0
        assert done.returncode == wanted, f"{command}: exit code {done.returncode}\n{printed[-2000:]}"
    check(entry, printed)
    return printed


def check(entry: Followed, printed: str) -> None:
    """Whether a block shows what it promises."""
    for pattern in entry.shows:
        assert re.search(pattern, printed), f"{entry.block.begins}: nothing like {pattern!r} in\n{printed[-2000:]}"
    if entry.accepts is not None:
        found = next((match for pattern in ACCEPTED if (match := pattern.search(printed))), None)
        assert found, f"{entry.block.begins}: no acceptance in\n{printed[-2000:]}"
        rate = float(found[1]) / (100 if "%" in found[0] else 1)
        assert rate >= entry.accepts, f"{entry.block.begins}: {rate:.2f} accepted, {entry.accepts} promised"


def serve(command: str, room: Path, env: dict[str, str]) -> str:
    """Start a server, ask it something once it is healthy, and stop it."""
    import httpx

    port = free_port()
    with (room / "server.log").open("w+") as log:
        words = f"exec {bare(command)} --port {port}"
        server = subprocess.Popen(["bash", "-c", words], cwd=room, env=env, stdout=log, stderr=log)
        try:
            url, until = f"http://127.0.0.1:{port}", time.monotonic() + START
            while not _healthy(url):
                log.seek(0)
                assert server.poll() is None and time.monotonic() < until, f"{command}: not ready\n{log.read()[-2000:]}"
                time.sleep(0.5)
            body = {"prompt": "Mon: open 9 to 17\nTue: open 9 to 17\nWed:", "max_tokens": 24, "temperature": 0}
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120).json()
            assert httpx.get(url, timeout=60).status_code == 200, "the page is not there"
            return str(answer["choices"][0]["text"])
        finally:
            server.terminate()
            server.wait()


def _healthy(url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def main(part: str = "") -> int:
    """Follow everything, and say what became of it."""
    failed = 0
    for entry in (entry for entry in followed() if part in entry.block.page):
        name = f"{entry.block.page}: {entry.block.begins[:90]}"
        if not entry.run:
            print(f"not run  {name}: {entry.reason}")
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as room:
            try:
                follow(entry, Path(room))
            except AssertionError as error:
                failed += 1
                print(f"FAILED   {name}: {error}", flush=True)
            else:
                print(f"ran      {name} ({time.monotonic() - begun:.0f} s)", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
