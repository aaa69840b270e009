"""One frame of `augury watch`: a panel per model if there is room, otherwise a row each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from augury.tools.live.check.screen import drafter
from augury.tools.live.marks import STYLES, WORDS, by_position, fitted, safe, spark
from augury.tools.live.watch.track import ModelTrack, State, Track
from augury.tools.live.window import Window
from augury.tools.shared.pulse import time_text

ASK_METHOD = "acceptance is not judged: name the method with --method"
MARK = 11  # columns of a row's first word
NARROWEST = 66  # columns of a panel
TALL = 7  # lines of a panel, with its frame
BORDERS = {"pass": "green", "warn": "yellow", "fail": "red"}


def frame(tracks: Sequence[Track], interval: float, width: int, height: int | None) -> RenderableType:
    """The whole frame for a terminal of this size; without a height, as many lines as needed."""
    shown: list[tuple[Track, ModelTrack | None]] = []
    for track in tracks:
        shown += [(track, seen) for seen in track.state.models] or [(track, None)]
    columns = max(1, min(len(shown), width // NARROWEST))
    fits = height is None or TALL * -(-len(shown) // columns) + 1 <= height
    keys = f"every {interval:g} s" + ("" if height is None else " · q quits")
    head = Text.assemble(("augury watch", "bold"), (f" · {time.strftime('%H:%M:%S')} · {keys}", "dim"))
    return Group(_cut(head, width), _panels(shown, columns, width) if fits else _rows(shown, width, height))


def _panels(shown: list[tuple[Track, ModelTrack | None]], columns: int, width: int) -> Table:
    grid = Table.grid(expand=True)
    for _ in range(columns):
        grid.add_column(ratio=1)
    made = [_panel(track, seen, width // columns - 4) for track, seen in shown]
    for first in range(0, len(made), columns):
        grid.add_row(*made[first : first + columns])
    return grid


def _panel(track: Track, seen: ModelTrack | None, room: int) -> Panel:
    state = track.state
    verdict = "fail" if state.error else seen.judged.verdict if seen else "note"
    title = Text.assemble((_mark(state, seen), STYLES[verdict]), " ", (track.session.server.base, "bold"))
    if seen is not None:
        title.append(f" {safe(seen.judged.window.after.model)}")
    lines = _down(track) if state.error else _figures(track, seen, room) if seen else [Text("reading", "dim")]
    body = Text("\n").join(_cut(text, room) for text in (*lines, *[Text()] * (TALL - 2 - len(lines))))
    return Panel(
        body, title=_cut(title, room), title_align="left", border_style=BORDERS.get(verdict, "dim"), padding=(0, 1)
    )


def _cut(text: Text, room: int) -> Text:
    text = text.copy()
    text.truncate(room, overflow="ellipsis")
    return text


def _mark(state: State, seen: ModelTrack | None) -> str:
    if state.error:
        return "down"
    if seen is None:
        return "..."
    return (
        "idle" if seen.steps and seen.steps[-1].idle and seen.judged.verdict != "fail" else WORDS[seen.judged.verdict]
    )


def _down(track: Track) -> list[Text]:
    state, base = track.state, track.session.server.base
    since = time.strftime("%H:%M:%S", time.localtime(state.since))
    lasted = max(0, round(time.time() - (state.since or time.time())))
    why = safe(str(state.error)).removeprefix(f"{base}: ").removeprefix(base).strip()
    return [
        Text(f"down since {since} ({_time(lasted)})", "bold red"),
        Text(why),
        Text("retrying at every interval", "dim"),
    ]


def _time(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _figures(track: Track, seen: ModelTrack, room: int) -> list[Text]:
    half = room // 2
    window, drafting = seen.judged.window, seen.judged.window.drafting
    rate = _curve("acceptance", seen, lambda w: w.in_interval.rate, drafting.rate, "{:.3f}", half, 1.0)
    length = _curve("length", seen, lambda w: w.in_interval.length, drafting.length, "{:.2f}", half)
    speed = _curve("tok/s", seen, lambda w: w.per_second("generation_tokens"), _speed(seen), "{:,.0f}", half)
    queue = _curve(
        "running", seen, lambda w: w.after.gauges.get("running"), window.after.gauges.get("running"), "{:.0f}", half
    )
    rates = drafting.curve or drafting.marginal
    positions = Text("positions  ", "dim").append_text(by_position(rates, room - 11)) if rates else Text()
    return [rate.append_text(length), speed.append_text(queue), positions, _load(window), _news(track, seen)]


def _speed(seen: ModelTrack) -> float | None:
    return seen.steps[-1].per_second("generation_tokens") if seen.steps else None


def _curve(
    name: str,
    seen: ModelTrack,
    value: Callable[[Window], float | None],
    now: float | None,
    form: str,
    room: int,
    top: float | None = None,
) -> Text:
    """A name, the current figure, and a sparkline of the last readings."""
    text = Text.assemble((f"{name:<10} ", "dim"), (f"{form.format(now) if now is not None else '-':<7}", "bold"))
    values = fitted([value(step) for step in seen.steps], max(1, room - text.cell_len - 2))
    text.append(spark(values, top or max((v for v in values if v is not None), default=1.0)), "cyan")
    return text.append(" " * max(0, room - text.cell_len))


def _load(window: Window) -> Text:
    gauges, said = window.after.gauges, []
    if "waiting" in gauges:
        said.append(f"waiting {gauges['waiting']:.0f}")
    if "kv_usage" in gauges:
        said.append(f"KV {gauges['kv_usage']:.0%}")
    if window.hit_rate is not None:
        said.append(f"prefix hits {window.hit_rate:.0%}")
    means = [(name.upper(), window.latency(name)) for name in ("ttft", "tpot") if not window.latencies_since_start]
    if shown := [f"{name} {time_text(value)}" for name, value in means if value is not None]:
        said.append(f"mean {', '.join(shown)}")
    return Text("  ".join(said))


def _news(track: Track, seen: ModelTrack) -> Text:
    """The worst check, otherwise a recent restart or recovery, otherwise the server's identity."""
    worst, state = seen.judged.worst, track.state
    if worst is not None:
        return Text.assemble((f"{worst.name}: {worst.figure}", STYLES[worst.state]), f" against {worst.against}")
    if seen.judged.wants_method:
        return Text(ASK_METHOD, STYLES["unknown"])
    if state.started_anew and time.time() - state.started_anew < 300:
        return Text(f"restarted at {time.strftime('%H:%M:%S', time.localtime(state.started_anew))}", "yellow")
    if state.since and time.time() - state.since < 300:
        return Text(f"back since {time.strftime('%H:%M:%S', time.localtime(state.since))}", "yellow")
    return Text(" · ".join(filter(None, [str(track.session.who), drafter(seen.judged)])), "dim")


def _rows(shown: list[tuple[Track, ModelTrack | None]], width: int, height: int | None) -> Text:
    """One line per model, with another for its worst check if there is room; models that do not fit are counted."""
    name = max(len(_base(track)) for track, _ in shown)
    name = min(name, width // 3)
    wide = width >= 110
    curve = f" {'':<20}" if wide else ""
    lines = [Text(f"{'':<{MARK}}{'server':<{name}} accept{curve} length   tok/s  run wait   KV", "dim")]
    room = len(shown) if height is None else max(1, height - 3)
    order = sorted(shown, key=lambda one: _rank(*one))[:room]  # faults come first, so that they are not cut off
    spare = room - len(order)
    for track, seen in order:
        lines.append(_row(track, seen, wide, name))
        worst = seen.judged.worst if seen and not track.state.error else None
        if worst is not None and spare > 0:
            spare -= 1
            lines.append(
                Text(f"{'':<{MARK}}{worst.name}: {worst.figure}, against {worst.against}", STYLES[worst.state])
            )
    if len(shown) > room:
        lines.append(Text(f"and {len(shown) - room} more", "dim"))
    return Text("\n").join(_cut(line, width) for line in lines)


def _base(track: Track) -> str:
    return track.session.server.base.removeprefix("http://")


def _rank(track: Track, seen: ModelTrack | None) -> int:
    verdict = "fail" if track.state.error else seen.judged.verdict if seen else "note"
    return 0 if track.state.error else 1 + ("fail", "warn", "unknown", "pass", "note").index(verdict)


def _row(track: Track, seen: ModelTrack | None, wide: bool, room: int) -> Text:
    state = track.state
    name = f"{_cut(Text(_base(track)), room).plain:<{room}} "
    if state.error or seen is None:
        what = f"{_down(track)[0].plain}, {state.error.kind}" if state.error else "reading"
        return Text.assemble((f"{_mark(state, seen):<{MARK}}", STYLES["fail" if state.error else "note"]), name, what)
    window, speed = seen.judged.window, _speed(seen)
    drafting, gauges = window.drafting, window.after.gauges
    row = Text.assemble((f"{_mark(state, seen):<{MARK}}", STYLES[seen.judged.verdict]), name)
    row.append(f"{'-' if drafting.rate is None else f'{drafting.rate:.3f}':<6}")
    if wide:
        row.append(f" {spark(fitted([step.in_interval.rate for step in seen.steps], 20), 1.0):<20}", "cyan")
    row.append(f" {'-' if drafting.length is None else f'{drafting.length:.2f}':<6}")
    row.append(f" {'-' if speed is None else f'{speed:,.0f}':>7}")
    row.append(f" {gauges.get('running', 0):>4.0f} {gauges.get('waiting', 0):>4.0f} {gauges.get('kv_usage', 0):>4.0%}")
    return row


def line(track: Track) -> list[str]:
    """A server as plain text, one line per model."""
    state, base, at = track.state, track.session.server.base, time.strftime("%Y-%m-%d %H:%M:%S")
    if state.error:
        since = time.strftime("%H:%M:%S", time.localtime(state.since))
        return [f"{at}  {base}  down since {since}: {_down(track)[1].plain}"]
    found = []
    for seen in state.models:
        window, drafting = seen.judged.window, seen.judged.window.drafting
        parts = [at, base, _mark(state, seen), safe(window.after.model)]
        parts += [] if drafting.rate is None else [f"rate {drafting.rate:.3f}", f"length {drafting.length:.2f}"]
        parts += [] if _speed(seen) is None else [f"{_speed(seen):.0f} tok/s"]
        parts += [f"running {window.after.gauges.get('running', 0):.0f}", _load(window).plain]
        worst = seen.judged.worst
        parts += [f"({worst.name}: {worst.figure})"] if worst else [ASK_METHOD] if seen.judged.wants_method else []
        found.append("  ".join(parts))
    return found
