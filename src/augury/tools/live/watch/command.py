"""`augury watch`: live servers side by side in the terminal, or one line each in a pipe."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer

from augury.tools.live.check.command import model_record, told
from augury.tools.live.expectation import band as read_band
from augury.tools.live.expectation import known_method
from augury.tools.live.session import GivenOfServer, Session
from augury.tools.live.watch.screen import frame, line
from augury.tools.live.watch.track import State, Track
from augury.tools.shared.http import Server
from augury.tools.shared.terminal import output_console, sayable

REDRAW = 0.25  # seconds until a resize or a key takes effect
DOWN = 2


def watch(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Servers, or their /metrics.")],
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between readings.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame after one interval, then exit.")] = False,
    method: Annotated[str | None, typer.Option(help="The method they run; vLLM's metrics do not name it.")] = None,
    band: Annotated[str | None, typer.Option(metavar="LO,HI", help="The acceptance rate you expect.")] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", "--speculative-config", "-sc", metavar="FILE|COMMAND", help="How the servers were started."
        ),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="AUGURY_API_KEY", help="The server's API key, if it needs one.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line for each reading and server.")] = False,
) -> None:
    """Watch live servers; q quits. With --once, exit code: 0 healthy, 1 a check failed, 2 one could not be read."""
    rate = read_band(band) if band else None
    asked = GivenOfServer(known_method(method) if method else None, rate=rate, config=told(config))
    tracks = [Track(Session(Server(url, api_key, timeout), asked)) for url in urls]
    if once:
        raise typer.Exit(_once(tracks, interval, as_json))
    with _polled(tracks, interval) as ended, _ends_on_signals(ended):
        if as_json or not sys.stdout.isatty():
            _lines(tracks, interval, ended, as_json)
        else:
            _screen(tracks, interval, ended)


def _once(tracks: list[Track], interval: float, as_json: bool) -> int:
    """Read every server twice, all at the same time, print one frame and return the exit code."""
    for pause in (interval, 0.0):
        workers = [threading.Thread(target=track.step, daemon=True) for track in tracks]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        time.sleep(pause)
    if as_json:
        for track in tracks:
            _print_line(_record(track, track.state))
    elif sys.stdout.isatty():
        console = output_console()
        console.print(frame(tracks, interval, console.width, None))
    else:
        for track in tracks:
            _print_text(track)
    states = [track.state for track in tracks]
    failed = any(seen.judged.verdict == "fail" for state in states for seen in state.models)
    return DOWN if any(state.error for state in states) else int(failed)


@contextmanager
def _polled(tracks: list[Track], interval: float) -> Iterator[threading.Event]:
    """Read every server in its own thread, so that one that hangs does not delay the others."""
    ended = threading.Event()
    for track in tracks:
        threading.Thread(target=track.forever, args=(interval, ended), daemon=True).start()
    try:
        yield ended
    finally:
        ended.set()


@contextmanager
def _ends_on_signals(ended: threading.Event) -> Iterator[None]:
    """Make Ctrl-C and SIGTERM leave as q does, so that the terminal is restored."""
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _screen(tracks: list[Track], interval: float, ended: threading.Event) -> None:
    from rich.live import Live

    console = output_console()
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while not ended.is_set():
            width, height = console.size
            live.update(frame(tracks, interval, width, height), refresh=True)
            if pressed(REDRAW) in (b"q", b"Q"):
                return


@contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits so many seconds for a key; it only sleeps if stdin is not a terminal."""
    if not sys.stdin.isatty():
        yield lambda seconds: time.sleep(seconds)
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield lambda seconds: os.read(number, 1) if select.select([number], [], [], seconds)[0] else b""
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _lines(tracks: list[Track], interval: float, ended: threading.Event, as_json: bool) -> None:
    """Print a line per model, or a record per server, in each interval from the second reading on."""
    while not ended.wait(interval):
        for track in tracks:
            if track.state.error is None and track.state.reads < 2:
                continue
            if as_json:
                _print_line(_record(track, track.state))
            else:
                _print_text(track)


def _print_text(track: Track) -> None:
    for text in line(track):
        print(text, flush=True)


def _print_line(record: dict[str, Any]) -> None:
    print(json.dumps(sayable(record), ensure_ascii=True, allow_nan=False), flush=True)


def _record(track: Track, state: State) -> dict[str, Any]:
    return {
        "at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "url": track.session.server.base,
        "up": state.error is None,
        "error": str(state.error) if state.error else None,
        "kind": state.error.kind if state.error else None,
        "engine": track.session.who.engine,
        "version": track.session.who.release,
        "models": [model_record(seen.judged) for seen in state.models] if state.error is None else [],
    }
