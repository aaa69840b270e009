"""A tuning report as one HTML file with charts."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from augury.tools.shared.html import h2, page, table
from augury.tools.shared.svg import Whisker, whiskers
from augury.tools.tune.choose import UNSURE, USE
from augury.tools.tune.screen import last_word


def tuning_page(found: dict[str, Any]) -> str:
    """The whole report."""
    choice, conditions = found["choice"], dict(found["conditions"])
    name = choice["family"] or choice["verdict"]
    style = {USE: "v0", UNSURE: "v2"}.get(choice["verdict"], "v1")
    parts = [f'<h1>Tuned: <span class="verdict {style}">{escape(name)}</span></h1><p>{escape(choice["reason"])}.</p>']
    if choice["speculative_config"] is not None:
        parts.append(f"<pre>-sc '{escape(json.dumps(choice['speculative_config']))}'</pre>")
    for entry in found["confirmed"]:
        parts.append(
            f"<p>{last_word(found).capitalize()}, {entry['concurrency']} at once: {entry['speed_up']:.2f} times plain "
            f"decoding ({_reach(entry)}).</p>"
        )
    for load in found["loads"]:
        parts += _load(load)
    parts += [f'<p class="bad">Left out {escape(name)}: {escape(why)}</p>' for name, why in found["left_out"].items()]
    parts += [f'<p class="note">{escape(note)}</p>' for note in found["notes"]]
    for name in ("versions", "traffic"):
        if isinstance(conditions.get(name), dict):
            conditions[name] = ", ".join(f"{key} {value}" for key, value in conditions[name].items())
    return page("Augury: tuning", parts, conditions, conditions.pop("seconds"))


def _load(load: dict[str, Any]) -> list[str]:
    arms = [arm for arm in load["arms"] if arm["k"] or arm["name"] != "plain"]
    lines = [
        Whisker(arm["name"], arm["speed_up"], arm["low"], arm["high"] or float("inf"), arm["name"] == load["leader"])
        for arm in arms
    ]
    rows = [
        (
            arm["name"],
            f"{arm['speed_up']:.2f}",
            _reach(arm),
            f"{arm['tokens_per_second']:.1f}",
            f"{arm['draft_acceptance_rate']:.0%}",
            f"{arm['mean_acceptance_length']:.2f}",
            arm["runs"],
            arm["rungs"],
            arm["out"] or "",
        )
        for arm in load["arms"]
    ]
    names = ("", "speed-up", "interval", "tok/s", "accepted", "length", "runs", "rungs", "left the race")
    return [
        h2(f"{load['concurrency']} at once: {load['verdict']}"),
        whiskers(lines, "speed-up over the baseline", 1.0),
        table(names, rows),
    ]


def _reach(entry: dict[str, Any]) -> str:
    return f"{entry['low']:.2f}-{'inf' if entry['high'] is None else format(entry['high'], '.2f')}"
