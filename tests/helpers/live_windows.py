"""Readings and windows of a made-up engine, through the real scrape."""

from __future__ import annotations

from vllm_text import Engine, Moment, text

from augury.tools.live.reading import Reading, readings
from augury.tools.live.scrape import Scrape, parse
from augury.tools.live.window import Window, window
from augury.tools.shared.http import Reply


def reading(engine: Engine, at: float) -> Reading:
    """What a scrape of one engine comes to."""
    samples, names = parse(Reply(text(Moment([engine])).encode(), "", 0.0), "http://x")
    (found,) = readings(Scrape(at, 0.0, samples, frozenset(names))).values()
    return found


def between(before: Engine, after: Engine, seconds: float = 10.0) -> Window:
    """Two readings of it, some seconds apart."""
    return window(reading(before, 100.0), reading(after, 100.0 + seconds))
