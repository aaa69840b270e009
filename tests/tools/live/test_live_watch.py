"""`augury watch`: servers that go, come back and start anew; frames of any size; lines, JSON, keys and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pexpect
import pytest
from rich.console import Console
from staged import body, staged
from typer.testing import CliRunner
from vllm_text import EAGLE3, Moment, later, recorded, started, text

from augury.cli import app
from augury.tools.live.marks import fitted, spark
from augury.tools.live.session import Session
from augury.tools.live.watch.screen import frame, line
from augury.tools.live.watch.track import Track
from augury.tools.shared.http import Server

RUN = "from augury.cli import main; main()"
HEALTHY = recorded("healthy-eagle3")


def track(url: str) -> Track:
    return Track(Session(Server(url, timeout=2.0)))


def test_a_server_goes_and_comes_back() -> None:
    gone = body("no", code=503)
    with staged(*HEALTHY, gone, gone, HEALTHY[1]) as stage:
        watched = track(stage.url)
        first = watched.step()
        assert first.error is None and first.reads == 1 and first.models[0].steps == []
        assert len(watched.step().models[0].steps) == 1
        down = watched.step()
        assert down.error is not None and down.error.kind == "http" and down.models and down.since
        assert watched.step().since == down.since, "it is down since the first failure"
        assert "down since" in line(watched)[0]
        back = watched.step()
    assert back.error is None and back.since >= down.since and back.reads == 3


def test_a_server_that_starts_anew_has_no_negative_rates() -> None:
    fresh = text(Moment([started(EAGLE3, drafts=10)]))
    with staged(*HEALTHY, fresh) as stage:
        watched = track(stage.url)
        watched.step(), watched.step()
        state = watched.step()
    assert state.started_anew is not None and state.models[0].steps == []
    assert state.models[0].judged.window.drafting.drafts == 10


@contextmanager
def several(number: int) -> Iterator[list[Track]]:
    """Servers that have been read twice, every third of them gone."""
    with ExitStack() as stack:
        tracks = []
        for n in range(number):
            texts: list[Any] = (
                [body("no", code=500)] if n % 3 == 2 else list(recorded("length-one" if n % 2 else "idle"))
            )
            tracks.append(track(stack.enter_context(staged(*texts)).url))
        for watched in tracks:
            watched.step(), watched.step()
        yield tracks


@pytest.mark.parametrize("number", [1, 3, 12, 40])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (40, 10), (200, 60)])
def test_frames_fit_the_terminal(number: int, width: int, height: int) -> None:
    with several(number) as tracks:
        console = Console(width=width, height=height, force_terminal=True, color_system=None)
        with console.capture() as captured:
            console.print(frame(tracks, 2.0, width, height))
    rows = captured.get().rstrip("\n").split("\n")
    assert len(rows) <= height and max(map(len, rows)) <= width
    if number == 3:
        assert sum("down" in row for row in rows) >= 1 and any("127.0.0.1" in row for row in rows)
    if number == 40 and height == 24:
        assert "more" in rows[-1] and rows[2].startswith("down"), "what is wrong is not what is cut off"


def test_minutes_fit_a_few_columns() -> None:
    assert fitted([1.0, None, 3.0], 5) == [1.0, None, 3.0]
    assert fitted([1.0, 3.0, None, 5.0, None, None], 3) == [2.0, 5.0, None]
    assert spark([0.0, 0.5, 1.0, None], 1.0) == "▁▄█·" and spark([1.0], 0.0) == "▁"


def once(*words: str) -> Any:
    return CliRunner().invoke(app, ["watch", *words, "--once", "--interval", "0.1"], prog_name="augury")


def test_once_prints_a_line_each_and_leaves() -> None:
    with staged(*HEALTHY) as good, staged(*recorded("length-one")) as bad, staged(body("no", code=500)) as gone:
        shown = once(good.url, bad.url, gone.url, "--method", "eagle3")
        lines = shown.stdout.splitlines()
        assert len(lines) == 3 and shown.exit_code == 2
        assert "healthy" in lines[0] and "rate 0.830" in lines[0] and "fault" in lines[1] and "down" in lines[2]
    with staged(*HEALTHY) as good:
        assert once(good.url).exit_code == 0
    with staged(*recorded("length-one")) as bad:
        assert once(bad.url, "--method", "eagle3").exit_code == 1


def test_json_is_one_line_a_server() -> None:
    with staged(*HEALTHY) as good, staged(body("<html>")) as gone:
        found = [json.loads(row) for row in once(good.url, gone.url, "--json").stdout.splitlines()]
    assert [one["up"] for one in found] == [True, False] and found[1]["kind"] == "html"
    assert found[0]["models"][0]["window"]["acceptance_rate"] == pytest.approx(0.83) and found[1]["models"] == []


def test_a_pipe_gets_lines_until_it_is_told_to_end() -> None:
    with staged(*HEALTHY) as stage:
        words = [sys.executable, "-c", RUN, "watch", stage.url, "--interval", "0.2", "--json"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        rows = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and errors == b"" and all(row["up"] for row in rows)
    assert all(json.loads(row) for row in rest.splitlines())


@contextmanager
def terminal(*urls: str, rows: int = 24, columns: int = 80) -> Iterator[Any]:
    """The command in a terminal of its own."""
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
    env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    words = ["-c", RUN, "watch", *urls, "--interval", "0.3"]
    child = pexpect.spawn(sys.executable, words, dimensions=(rows, columns), env=env, encoding="utf-8", timeout=120)
    try:
        yield child
    finally:
        child.close(force=True)


@pytest.mark.parametrize("leave", ["q", "\x03", "term"])
def test_leaving_puts_the_terminal_right(leave: str) -> None:
    engine = started(EAGLE3)
    texts = [text(Moment([later(engine, 200 * n)])) for n in range(200)]
    with staged(*texts) as stage, terminal(stage.url) as child:
        child.expect("0[.]830")
        if leave == "term":
            child.kill(signal.SIGTERM)
        else:
            child.send(leave)
        child.expect_exact("\x1b[?25h")  # the cursor is back
        child.expect_exact("\x1b[?1049l")  # and so is the first screen
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 0 and child.signalstatus is None


def test_a_resize_shows_at_once() -> None:
    with staged(*HEALTHY) as one, staged(*HEALTHY) as two, terminal(one.url, two.url) as child:
        child.expect("q quits")
        child.setwinsize(40, 140)
        child.expect("╮(\x1b\\[[0-9;]*m)*╭")  # two panels side by side
        child.send("q")
        child.expect(pexpect.EOF)


def test_a_server_that_hangs_holds_up_no_other() -> None:
    """The silent one answers only after the other's line has been read, which waits for it no longer than --timeout."""
    heard, timeout = threading.Event(), 120.0

    with staged(*HEALTHY) as good, staged(lambda handler: heard.wait(2 * timeout)) as stuck:
        watched = ["watch", stuck.url, good.url, "--interval", "0.2", "--json", "--timeout", str(timeout)]
        with subprocess.Popen([sys.executable, "-c", RUN, *watched], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            begun = time.monotonic()
            row = json.loads(process.stdout.readline())
            waited = time.monotonic() - begun
            heard.set()
            process.terminate()
    assert row["url"] == good.url and waited < timeout


CONFIG = 'vllm serve m -sc \'{"method": "eagle3", "model": "x", "num_speculative_tokens": %d}\''


def watched_once(*words: str) -> tuple[int, dict[str, Any]]:
    with staged(*HEALTHY) as stage:
        ran = CliRunner().invoke(app, ["watch", stage.url, "--once", "--interval", "0.1", "--json", *words])
    return ran.exit_code, json.loads(ran.stdout)["models"][0]


def test_bands_and_k_come_from_the_configuration(tmp_path: Any) -> None:
    file = tmp_path / "start.sh"
    file.write_text(CONFIG % 3)
    assert watched_once()[1]["expected"]["method"] is None, "vLLM does not tell"
    for words in (("--config", CONFIG % 3), ("-sc", (CONFIG % 3).split("'")[1]), ("--config", str(file))):
        code, model = watched_once(*words)
        told = model["expected"]
        assert (told["method"], told["named_by"], told["k"]) == ("eagle3", "the configuration", 3), words
        assert told["rate"] == [0.46, 0.7] and told["differs"] is None and code == 0
        assert model["verdict"] == watched_once("--method", "eagle3")[1]["verdict"]


def test_another_k_than_the_server_shows_is_told_and_a_bad_file_is_refused() -> None:
    assert watched_once("--config", CONFIG % 5)[1]["expected"]["differs"] == ["K=3", "K=5 (the configuration)"]
    ran = CliRunner().invoke(app, ["watch", "localhost:1", "--once", "--config", "no-such-file"])
    assert ran.exit_code == 2 and "no-such-file" in ran.stderr
